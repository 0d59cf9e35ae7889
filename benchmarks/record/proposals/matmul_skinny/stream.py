"""Each program streams the weights of a few outputs once; one row is summed in lanes, several go through tensor cores.

Bound by memory: the weights. Where outputs are few, the inner dimension is split and a tiny launch adds the parts.

For one row, a program has fewer outputs where they are long, and takes more of each at a time. The 528 programs at work
read places in 35 MB then; with 8 outputs for each it was 69 MB for outputs of 16 KB and 104 MB for 32 KB, and memory
gives 0.6 there of what it gives neighbours. Not yet measured so. For several rows it still is 120 to 200 MB: more of an
output at a time takes as much more of all rows from the L2 cache, and a split another launch.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"COLS": [4, 8, 16], "INNER": [512, 1024], "TILE": [16, 32, 64], "DEEP": [128, 256], "STAGES": [3, 4, 5]}
COLS = 8
INNER = 1024
TILE = 32
DEEP = 256
STAGES = 4
PROGRAMS = 528
MOST = 64 << 10
"""Bytes of weights of a program for one row, where there are enough of them for all processors."""


@triton.jit
def _one(x, weight, out, inner, outer, share, COLS: tl.constexpr, INNER: tl.constexpr):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    first = tl.program_id(1) * share
    last = tl.minimum(inner, first + share)
    place = tl.arange(0, INNER)
    at = weight + col.to(tl.int64)[:, None] * inner + place[None, :]
    total = tl.zeros([COLS, INNER], tl.float32)
    for start in range(first, last, INNER):
        ok = start + place < last
        w = tl.load(at + start, mask=(col < outer)[:, None] & ok[None, :], other=0.0)
        value = tl.load(x + start + place, mask=ok, other=0.0)
        total += w.to(tl.float32) * value.to(tl.float32)[None, :]
    tl.store(out + tl.program_id(1) * outer + col, tl.sum(total, axis=1), mask=col < outer)


@triton.jit
def _some(
    x, weight, out, rows, inner, outer, share,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(0) * TILE + tl.arange(0, TILE)
    first = tl.program_id(1) * share
    last = tl.minimum(inner, first + share)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, DEEP)
    xs = x + row.to(tl.int64)[:, None] * inner + place[None, :]
    ws = weight + col.to(tl.int64)[None, :] * inner + place[:, None]
    total = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(first, last, DEEP):
        ok = start + place < last
        a = tl.load(xs + start, mask=(row < rows)[:, None] & ok[None, :], other=0.0)
        b = tl.load(ws + start, mask=(col < outer)[None, :] & ok[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = (tl.program_id(1) * rows + row).to(tl.int64)[:, None] * outer + col[None, :]
    tl.store(out + at, total, mask=(row < rows)[:, None] & (col < outer)[None, :])


@triton.jit
def _join(parts, out, count, pieces, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for piece in range(0, pieces):
        total += tl.load(parts + piece * count + at, mask=at < count, other=0.0)
    tl.store(out + at, total, mask=at < count)


class ModelNew(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.linear = nn.Linear(inner, outer, bias=False, dtype=getattr(torch, dtype))

    def forward(self, x):
        x, weight = x.contiguous(), self.linear.weight
        rows, inner = x.shape
        outer = weight.shape[0]
        out = torch.empty((rows, outer), dtype=x.dtype, device=x.device)
        if not out.numel():
            return out
        single = rows == 1
        wide = x.dtype is torch.float32
        strip, inside = max(1, COLS // 2), INNER  # enough programs without a split in two launches
        if outer > 8 * PROGRAMS:
            strip = COLS
            while strip > 2 and strip * inner * x.element_size() > MOST:
                strip, inside = strip // 2, inside * 2
        tile, deep = (strip, inside) if single else (TILE, DEEP // 2 if wide else DEEP)
        blocks = triton.cdiv(outer, tile)
        pieces = max(1, min(8, inner // (2 * deep), PROGRAMS // (blocks * (1 if single else 2))))
        share = triton.cdiv(triton.cdiv(inner, deep), pieces) * deep
        pieces = triton.cdiv(inner, share)
        target = out
        if pieces > 1:
            target = torch.empty((pieces, rows, outer), dtype=torch.float32, device=x.device)
        if single:
            _one[(blocks, pieces)](x, weight, target, inner, outer, share, COLS=tile, INNER=deep, num_warps=4)
        else:
            _some[(blocks, pieces, triton.cdiv(rows, 16))](
                x, weight, target, rows, inner, outer, share, ROWS=16, TILE=tile, DEEP=deep,
                PRECISION="tf32x3" if wide else "tf32", num_warps=4, num_stages=3 if wide else STAGES,
            )  # fmt: skip
        if pieces > 1:
            count = rows * outer
            _join[(triton.cdiv(count, 1024),)](target, out, count, pieces, BLOCK=1024, num_warps=4)
        return out
