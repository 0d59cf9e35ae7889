"""One program walks along a head with the running state of some value columns in registers: one launch, no scratch.

Bound by memory, or by the walk's latency where heads are few; heads are then split over more columns of values. A
head's size is passed as a multiple of `UNIT`, 16 bytes: the compiler looks for multiples of 16 alone, and fetched heads
of 72 by 2 bytes at a time, 7 us a chunk.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"PROGRAMS": [120, 240, 480], "WARPS": [4, 8], "STAGES": [1, 2, 3]}
MOST = 64
PROGRAMS = 240
WARPS = 4
STAGES = 3


@triton.jit
def _shrink(peak):
    """The power of two by which numbers up to `peak` have to be divided to stay within fp16."""
    return tl.where((peak > 32768.0) & (peak < float("inf")), tl.exp2(tl.ceil(tl.log2(peak)) - 15.0), 1.0)


@triton.jit
def _walk(
    q, k, v, out, length, units, scale, strips,
    UNIT: tl.constexpr, CHUNK: tl.constexpr, DIM: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
    NARROW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    dim = units * UNIT
    base = (tl.program_id(0) // strips).to(tl.int64) * length * dim
    token = tl.arange(0, CHUNK)
    inner = tl.arange(0, DIM)
    col = (tl.program_id(0) % strips) * COLS + tl.arange(0, COLS)
    state = tl.zeros([DIM, COLS], tl.float32)
    for start in tl.range(0, length, CHUNK, num_stages=STAGES):
        here = start + token
        rows = base + here.to(tl.int64) * dim
        ok = (here < length)[:, None] & (inner < dim)[None, :]
        qs = tl.load(q + rows[:, None] + inner[None, :], mask=ok, other=0.0)
        ks = tl.load(k + rows[:, None] + inner[None, :], mask=ok, other=0.0)
        ok = (here < length)[:, None] & (col < dim)[None, :]
        vs = tl.load(v + rows[:, None] + col[None, :], mask=ok, other=0.0)
        scores = tl.dot(qs, tl.trans(ks), input_precision=PRECISION)
        scores = tl.where(token[:, None] >= token[None, :], scores, 0.0)
        if NARROW:  # both factors may be beyond 65,504 where the result is not
            by_token = _shrink(tl.max(tl.abs(scores), axis=1))[:, None]
            by_column = _shrink(tl.max(tl.abs(state), axis=0))[None, :]
            total = tl.dot((scores / by_token).to(vs.dtype), vs, input_precision=PRECISION) * by_token
            total += tl.dot(qs, (state / by_column).to(qs.dtype), input_precision=PRECISION) * by_column
        else:
            total = tl.dot(scores.to(vs.dtype), vs, input_precision=PRECISION)
            total = tl.dot(qs, state.to(qs.dtype), total, input_precision=PRECISION)
        tl.store(out + rows[:, None] + col[None, :], total * scale, mask=ok)
        state = tl.dot(tl.trans(ks), vs, state, input_precision=PRECISION)


class ModelNew(nn.Module):
    def __init__(self, chunk=64):
        super().__init__()
        self.chunk = chunk

    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = torch.empty_like(q)
        if not out.numel():
            return out
        batch, heads, length, dim = q.shape
        if dim > 128:
            raise NotImplementedError("heads of at most 128")
        width = max(16, triton.next_power_of_2(dim))
        cols = width
        while cols > 16 and batch * heads * triton.cdiv(dim, cols) < PROGRAMS:
            cols //= 2
        strips = triton.cdiv(dim, cols)
        wide = q.dtype is torch.float32
        unit = 16 // q.itemsize
        unit = 1 if dim % unit else unit
        # As many tokens at once as the reference takes: of an infinite value, what is in its chunk gets an infinity,
        # and what comes later a NaN, as the state is then infinite either way.
        chunk = max(16, min(MOST, 1 << (self.chunk.bit_length() - 1)))
        _walk[(batch * heads * strips,)](
            q, k, v, out, length, dim // unit, dim**-0.5, strips, UNIT=unit, CHUNK=chunk, DIM=width,
            COLS=cols, PRECISION="tf32x3" if wide else "tf32", NARROW=q.dtype is torch.float16,
            STAGES=1 if wide else STAGES, num_warps=WARPS,
        )  # fmt: skip
        return out
