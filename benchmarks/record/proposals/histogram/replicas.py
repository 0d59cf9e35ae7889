"""Programs count into copies of the histogram that stay in the L2 cache, and a second launch adds the copies.

Bound by atomic additions: copies keep those to a frequent bin apart.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [1024, 2048, 4096], "COPIES": [16, 64, 256], "PROGRAMS": [528, 1056]}
BLOCK = 2048
COPIES = 64
PROGRAMS = 1056


@triton.jit
def _clear(parts, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(parts + at, 0, mask=at < count)


@triton.jit
def _count(ids, parts, count, bins, copies, BLOCK: tl.constexpr):
    part = parts + (tl.program_id(0) % copies).to(tl.int64) * bins
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, count, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        bin = tl.load(ids + at, mask=at < count, other=0)
        tl.atomic_add(part + bin, 1, mask=at < count, sem="relaxed")


@triton.jit
def _join(parts, out, bins, copies, BLOCK: tl.constexpr):
    bin = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for copy in range(0, copies):
        total += tl.load(parts + copy * bins + bin, mask=bin < bins, other=0).to(tl.int64)
    tl.store(out + bin, total, mask=bin < bins)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, ids):
        ids = ids.contiguous()
        bins, count = self.bins, ids.numel()
        out = torch.empty(bins, dtype=torch.int64, device=ids.device)
        programs = max(1, min(PROGRAMS, triton.cdiv(count, BLOCK)))
        copies = max(1, min(COPIES, triton.cdiv(programs, 8), (1 << 23) // bins))
        parts = torch.empty((copies, bins), dtype=torch.int32, device=ids.device)
        _clear[(triton.cdiv(copies * bins, 4096),)](parts, copies * bins, BLOCK=4096, num_warps=8)
        _count[(programs,)](ids, parts, count, bins, copies, BLOCK=BLOCK, num_warps=8)
        _join[(triton.cdiv(bins, 128),)](parts, out, bins, copies, BLOCK=128, num_warps=4)
        return out
