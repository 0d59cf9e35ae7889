"""Both gradients in one pass: a program walks over rows, writes dx, and keeps its part of dweight in registers; a small
kernel adds the parts, always in the same order.

Bound by memory: dy and x once in, dx once out.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"PROGRAMS": [132, 264, 528], "ELEMENTS": [4096, 8192], "PER_THREAD": [8, 16, 32], "STAGES": [1, 2, 3]}
PROGRAMS = 264
ELEMENTS = 4096
PER_THREAD = 16
STAGES = 2


@triton.jit
def gradients(
    dy, x, weight, dx, parts, rows, N, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    n = tl.arange(0, BLOCK)
    known = n < N
    w = tl.load(weight + n, mask=known, other=0.0).to(tl.float32)
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        at = row.to(tl.int64)[:, None] * N + n[None, :]
        real = (row < rows)[:, None] & known[None, :]
        g = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(v * v, 1) / N + eps)
        normed = v * scale[:, None]
        dw += g * normed
        g *= w[None, :]
        mean = tl.sum(g * normed, 1) / N
        result = scale[:, None] * (g - normed * mean[:, None])
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=real)
    tl.store(parts + tl.program_id(0).to(tl.int64) * N + n, tl.sum(dw, 0), mask=known)


@triton.jit
def add_parts(parts, dweight, count, N, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((PARTS, BLOCK), tl.float32)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS)
        real = (part < count)[:, None] & (n < N)[None, :]
        total += tl.load(parts + part.to(tl.int64)[:, None] * N + n[None, :], mask=real, other=0.0)
    tl.store(dweight + n, tl.sum(total, 0).to(dweight.dtype.element_ty), mask=n < N)


class ModelNew(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, x, weight):
        if x.dim() != 2 or dy.shape != x.shape or weight.shape != x.shape[1:] or x.dtype == torch.float64:
            raise ValueError("two matrices of one shape and a weight for their columns are needed, not in float64")
        rows, hidden = x.shape
        if hidden > 16384:
            raise ValueError("at most 16384 columns")
        dy, x, weight = dy.contiguous(), x.contiguous(), weight.contiguous()
        dx, dweight = torch.empty_like(x), torch.empty_like(weight)
        if not hidden:
            return dx, dweight
        block = max(16, triton.next_power_of_2(hidden))
        group = max(1, min(ELEMENTS // block, triton.next_power_of_2(max(1, rows // PROGRAMS))))
        programs = max(1, min(PROGRAMS, triton.cdiv(rows, group)))
        warps = min(16, max(1, triton.next_power_of_2(group * block // (32 * PER_THREAD))))
        parts = torch.empty((programs, hidden), dtype=torch.float32, device=x.device)
        gradients[(programs,)](
            dy, x, weight, dx, parts, rows, hidden, self.eps, ROWS=group, BLOCK=block, STAGES=STAGES, num_warps=warps
        )
        add_parts[(triton.cdiv(hidden, 32),)](parts, dweight, programs, hidden, PARTS=64, BLOCK=32, num_warps=4)
        return dx, dweight
