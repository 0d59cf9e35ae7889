"""A jagged row lies in one piece, so a dense row is one flat copy and zeros after it.

Bound by memory: the vectors that are kept are read once, and the dense tensor is written once, 16 bytes at a time.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [2048, 4096, 8192], "WARPS": [4, 8]}
BLOCK = 4096
WARPS = 8


@triton.jit
def _copy(values, offsets, out, length, blocks, DIM: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * BLOCK
    begin = tl.load(offsets + row)
    kept = tl.minimum(tl.load(offsets + row + 1) - begin, length).to(tl.int32) * DIM
    at = first + tl.arange(0, BLOCK)
    value = tl.load(values + begin * DIM + at, mask=at < kept, other=0.0)
    tl.store(out + row * length * DIM + at, value, mask=at < length * DIM)


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, values, offsets):
        values, offsets = values.contiguous(), offsets.contiguous()
        batch, dim = offsets.shape[0] - 1, values.shape[1]
        out = torch.empty((batch, self.length, dim), dtype=values.dtype, device=values.device)
        if not out.numel():
            return out
        block = min(BLOCK, triton.next_power_of_2(self.length * dim))
        blocks = triton.cdiv(self.length * dim, block)
        warps = max(1, min(WARPS, block // 256))
        _copy[(batch * blocks,)](values, offsets, out, self.length, blocks, DIM=dim, BLOCK=block, num_warps=warps)
        return out
