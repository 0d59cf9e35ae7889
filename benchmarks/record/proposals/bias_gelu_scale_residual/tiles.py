"""One pass over tiles of rows and columns, bias and scale loaded once a tile; rows of odd length are walked flat.

Bound by memory: two reads and one write, in accesses of 16 bytes. Tiles go along the rows: what is read at a time is
one region of each tensor. Down the columns first, as it was, tiles at work lay over four to eight times as much memory
(35 MB of each tensor for rows of 16 KB). Not yet measured in this order.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"ELEMENTS": [2048, 4096, 8192], "WARPS": [4, 8], "WIDE": [512, 1024, 2048]}
ELEMENTS = 4096
WARPS = 8
WIDE = 1024


@triton.jit
def _value(x, residual, bias, scale):
    h = x.to(tl.float32) + bias.to(tl.float32)
    gelu = 0.5 * h * (1.0 + tl.math.erf(h * 0.7071067811865476))
    return gelu * scale.to(tl.float32) + residual.to(tl.float32)


@triton.jit
def _tiles(x, residual, bias, scale, out, rows, hidden, strips, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = (tl.program_id(0) // strips).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % strips) * COLS + tl.arange(0, COLS)[None, :]
    ok = (row < rows) & (col < hidden)
    at = row * hidden + col
    xs = tl.load(x + at, mask=ok)
    rs = tl.load(residual + at, mask=ok)
    bs = tl.load(bias + col, mask=col < hidden)
    ss = tl.load(scale + col, mask=col < hidden)
    tl.store(out + at, _value(xs, rs, bs, ss), mask=ok)


@triton.jit
def _flat(x, residual, bias, scale, out, count, hidden, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    at = first + lane
    col = ((first % hidden).to(tl.int32) + lane) % hidden
    xs = tl.load(x + at, mask=at < count)
    rs = tl.load(residual + at, mask=at < count)
    bs = tl.load(bias + col)
    ss = tl.load(scale + col)
    tl.store(out + at, _value(xs, rs, bs, ss), mask=at < count)


class ModelNew(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden, dtype=getattr(torch, dtype)))
        self.scale = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        out = torch.empty_like(x)
        count, hidden = x.numel(), self.bias.shape[0]
        if not count:
            return out
        rows = count // hidden
        if hidden % (16 // x.element_size()):
            block = ELEMENTS // 2  # a column for each element takes registers
            _flat[(triton.cdiv(count, block),)](
                x, residual, self.bias, self.scale, out, count, hidden, BLOCK=block, num_warps=WARPS
            )
            return out
        cols = min(WIDE, triton.next_power_of_2(hidden))
        size, strips = ELEMENTS // cols, triton.cdiv(hidden, cols)
        _tiles[(triton.cdiv(rows, size) * strips,)](
            x, residual, self.bias, self.scale, out, rows, hidden, strips, ROWS=size, COLS=cols, num_warps=WARPS
        )
        return out
