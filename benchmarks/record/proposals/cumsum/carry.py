"""Each program scans its rows block by block in registers; the next block is loaded while this one is scanned.

Bound by memory: one read and one write. The running total is kept in float32. Of rows above 64 KB a processor has one
at a time, in blocks of 64 KB: with the seven that it has room for in small blocks, 924 rows of 256 KB were read at as
many places in 242 MB, and memory gives neighbours more. Now they are 34 MB. Not yet measured with such blocks.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [1024, 2048, 4096], "ROWS": [1, 2], "PER_THREAD": [8, 16], "LONG": [8192, 16384]}
BLOCK = 2048
ROWS = 1
PER_THREAD = 16
LONG = 16384
"""Elements of a block of long rows, 32 of them a thread: with 128 registers for each of 512, nothing else has room."""


@triton.jit
def _scan(x, out, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    ok = row < rows
    carry = tl.zeros([ROWS, 1], tl.float32)
    value = tl.load(x + row * cols + col, mask=ok & (col < cols), other=0.0).to(tl.float32)
    for start in range(0, cols, BLOCK):
        here = start + col
        after = here + BLOCK
        ahead = tl.load(x + row * cols + after, mask=ok & (after < cols), other=0.0).to(tl.float32)
        tl.store(out + row * cols + here, tl.cumsum(value, axis=1) + carry, mask=ok & (here < cols))
        carry += tl.sum(value, axis=1, keep_dims=True)
        value = ahead


class ModelNew(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if self.dim % x.dim() != x.dim() - 1:
            raise NotImplementedError("the last dimension only")
        x = x.contiguous()
        out = torch.empty_like(x)
        if not x.numel():
            return out
        cols = x.shape[-1]
        rows = x.numel() // cols
        long = cols * x.element_size() > 1 << 16
        block = LONG if long else min(BLOCK, triton.next_power_of_2(cols))
        size = 1 if long else max(ROWS, 512 // block)
        warps = LONG // 1024 if long else max(1, min(16, size * block // (32 * PER_THREAD)))
        _scan[(triton.cdiv(rows, size),)](x, out, rows, cols, ROWS=size, BLOCK=block, num_warps=warps)
        return out
