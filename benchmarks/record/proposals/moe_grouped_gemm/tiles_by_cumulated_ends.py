"""One launch and no synchronisation: a program finds its expert and its rows by comparing its number with the
cumulated tiles of all experts, so that skewed loads and empty experts cost nothing. Bound by the tensor cores, or by
the weights' bytes where tokens are few.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"TALL": [64, 128], "WIDE": [128, 256], "DEEP": [32, 64], "STAGES": [3, 4], "BAND": [8, 16, 32]}
TALL = 128
WIDE = 256
DEEP = 64
STAGES = 3
WARPS = 8
BAND = 16
FEW = 64


@triton.jit
def multiply(
    x, weight, ends, out, tiles, experts, inner, outer,
    EXPERTS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, EVEN: tl.constexpr,
    BAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # Bands of rows that the L2 cache can hold, with all columns each, so that weights stream once a band.
    program, broad = tl.program_id(0), tl.cdiv(outer, WIDE)
    band = program // (BAND * broad)
    size = tl.minimum(tiles - band * BAND, BAND)
    tile = band * BAND + program % (BAND * broad) % size
    col = program % (BAND * broad) // size * WIDE + tl.arange(0, WIDE)
    number = tl.arange(0, EXPERTS)
    stops = tl.load(ends + number, mask=number < experts, other=0)
    begins = tl.load(ends + number - 1, mask=(number > 0) & (number < experts), other=0)
    upto = tl.cumsum(tl.where(number < experts, (stops - begins + TALL - 1) // TALL, 0), axis=0)
    expert = tl.sum((upto <= tile).to(tl.int32), axis=0)
    if expert < experts:
        own = number == expert
        first = tile - tl.sum(tl.where(number == expert - 1, upto, 0), axis=0)
        row = tl.sum(tl.where(own, begins, 0), axis=0) + first * TALL + tl.arange(0, TALL)
        here = row < tl.sum(tl.where(own, stops, 0), axis=0)
        deep = tl.arange(0, DEEP)
        # What lies beyond the expert's last row or the last column is read from the first ones, and never stored.
        from_x = x + tl.where(here, row, 0)[:, None] * inner + deep[None, :]
        from_weight = weight + (tl.cast(expert, tl.int64) * inner + deep)[:, None] * outer + (col % outer)[None, :]
        acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
        for at in tl.range(0, inner, DEEP, num_stages=STAGES):
            if EVEN:
                a, b = tl.load(from_x + at), tl.load(from_weight)
            else:
                left = deep + at < inner
                a = tl.load(from_x + at, mask=left[None, :], other=0.0)
                b = tl.load(from_weight, mask=left[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision="ieee")
            from_weight += DEEP * outer
        inside = here[:, None] & (col[None, :] < outer)
        tl.store(out + row[:, None] * outer + col[None, :], acc.to(out.dtype.element_ty), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, weight, ends):
        x, weight = x.contiguous(), weight.contiguous()
        (tokens, inner), (experts, _inner, outer) = x.shape, weight.shape
        out = torch.empty(tokens, outer, dtype=x.dtype, device=x.device)
        few = tokens < FEW * experts
        tall = 32 if 4 * tokens < FEW * experts else 64 if few else TALL
        wide, warps = (128, 4) if few or x.dtype == torch.float32 else (WIDE, WARPS)
        tiles, deep = triton.cdiv(tokens, tall) + experts, DEEP if x.itemsize < 4 else 32
        multiply[(tiles * triton.cdiv(outer, wide),)](
            x, weight, ends, out, tiles, experts, inner, outer,
            EXPERTS=triton.next_power_of_2(experts), TALL=tall, WIDE=wide, DEEP=deep, EVEN=inner % deep == 0,
            BAND=BAND, STAGES=STAGES, num_warps=warps,
        )  # fmt: skip
        return out
