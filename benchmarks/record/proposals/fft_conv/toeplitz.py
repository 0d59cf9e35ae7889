"""The long convolution as products of Toeplitz blocks on tensor cores: one launch, no transform, nothing in between.

Blocks of a filter are multiplied with all blocks of all sequences of a channel at once. Bound by the tensor cores.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [64, 128], "ROWS": [64, 128, 256], "WARPS": [4, 8], "STAGES": [1, 2, 3]}
BLOCK = 64
ROWS = 128
WARPS = 8
STAGES = 2


@triton.jit
def _convolve(
    u, taps, skip, out, batch, channels, length,
    SEQUENCES: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # A row of the product is one block of one sequence; spans with the most work start first.
    channel = tl.program_id(0) % channels
    span = tl.program_id(1)
    span = tl.num_programs(1) - 1 - span
    line = tl.arange(0, SEQUENCES * SPANS)
    sequence = (tl.program_id(0) // channels) * SEQUENCES + line // SPANS
    part = span * SPANS + line % SPANS
    base = (sequence.to(tl.int64) * channels + channel) * length
    filter = taps + channel.to(tl.int64) * length
    place = tl.arange(0, BLOCK)
    total = tl.zeros([SEQUENCES * SPANS, BLOCK], tl.float32)
    # Through the transform one NaN or infinity reaches all of its sequence: so it does here.
    poison = tl.zeros([BLOCK], tl.float32)
    taint = tl.zeros([SEQUENCES * SPANS], tl.float32)
    blocks = tl.cdiv(length, BLOCK)
    for block in range(0, blocks):
        at = block * BLOCK + place
        poison += tl.load(filter + at, mask=at < length, other=0.0).to(tl.float32) * 0.0
    poisoned = tl.sum(poison, axis=0)
    for lag in tl.range(0, tl.minimum((span + 1) * SPANS, blocks), num_stages=STAGES):
        at = (part - lag)[:, None] * BLOCK + place[None, :]
        a = tl.load(u + base[:, None] + at, mask=(sequence < batch)[:, None] & (at >= 0) & (at < length), other=0.0)
        tap = lag * BLOCK + place[None, :] - place[:, None]
        b = tl.load(filter + tap, mask=(tap >= 0) & (tap < length), other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)

    for block in range(0, blocks, SPANS):  # the lines of one sequence share its blocks
        at = (block + line % SPANS)[:, None] * BLOCK + place[None, :]
        a = tl.load(u + base[:, None] + at, mask=(sequence < batch)[:, None] & (at < length), other=0.0)
        taint += tl.sum(a.to(tl.float32) * 0.0, axis=1)
    whole = tl.sum(tl.reshape(taint, [SEQUENCES, SPANS]), axis=1, keep_dims=True)
    taint = tl.reshape(tl.broadcast_to(whole, [SEQUENCES, SPANS]), [SEQUENCES * SPANS])
    at = part[:, None] * BLOCK + place[None, :]
    ok = (sequence < batch)[:, None] & (at < length)
    own = tl.load(u + base[:, None] + at, mask=ok, other=0.0).to(tl.float32)
    result = total + own * tl.load(skip + channel).to(tl.float32) + (taint[:, None] + poisoned)
    tl.store(out + base[:, None] + at, result, mask=ok)


class ModelNew(nn.Module):
    def __init__(self, channels, dtype="float32"):
        super().__init__()
        self.skip = nn.Parameter(torch.randn(channels).to(getattr(torch, dtype)))

    def forward(self, u, taps):
        u, taps = u.contiguous(), taps.contiguous()
        batch, channels, length = u.shape
        out = torch.empty_like(u)
        if not out.numel():
            return out
        wide = u.dtype is torch.float32
        block = min(64, BLOCK) if wide else BLOCK
        blocks = triton.cdiv(length, block)
        sequences = min(16, triton.next_power_of_2(batch))
        rows = 64 if wide else ROWS
        spans = max(1, min(rows // sequences, triton.next_power_of_2(blocks)))
        while sequences * spans < 16:
            spans *= 2
        grid = (triton.cdiv(batch, sequences) * channels, triton.cdiv(blocks, spans))
        _convolve[grid](
            u, taps, self.skip, out, batch, channels, length, SEQUENCES=sequences, SPANS=spans, BLOCK=block,
            PRECISION="tf32x3" if wide else "tf32", STAGES=1 if wide else STAGES, num_warps=WARPS,
        )  # fmt: skip
        return out
