"""Rows stay in registers: forward reads x and residual once; backward reads them again rather than storing their sum,
and adds up the weight's gradient in registers over many rows. Bound by memory: 7 tensors of traffic, forward and
backward.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"TILE": [4096, 8192, 16384], "PROGRAMS": [132, 264, 528], "STAGES": [1, 2], "LANE": [16, 32]}
TILE = 4096
PROGRAMS = 264
STAGES = 2
LANE = 16
LARGEST = 32768
SHARED = 160 * 1024


@triton.jit
def forward_rows(x, residual, weight, out, rstd, rows, hidden, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (col[None, :] < hidden)
    at = row[:, None].to(tl.int64) * hidden + col[None, :]
    h = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    h += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(h * h, axis=1) / hidden + eps)
    tl.store(rstd + row, scale, mask=row < rows)
    w = tl.load(weight + col, mask=col < hidden, other=0.0).to(tl.float32)
    found = (h * scale[:, None] * w[None, :]).to(out.dtype.element_ty)
    tl.store(out + at, found, mask=inside, eviction_policy="evict_first")  # backward reads x and residual, not this


@triton.jit
def backward_rows(
    x, residual, weight, rstd, dy, dx, partial, rows, hidden,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    col = tl.arange(0, BLOCK)
    w = tl.load(weight + col, mask=col < hidden, other=0.0).to(tl.float32)
    dw = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    tiles = tl.cdiv(rows, ROWS)
    for tile in tl.range(program, tiles, programs, num_stages=STAGES):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)  # the last rows first: the L2 cache still has them
        inside = (row[:, None] < rows) & (col[None, :] < hidden)
        at = row[:, None].to(tl.int64) * hidden + col[None, :]
        h = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        h += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)
        normed = h * scale[:, None]
        dw += g * normed
        g *= w[None, :]
        mean = tl.sum(g * normed, axis=1) / hidden
        found = scale[:, None] * (g - normed * mean[:, None])
        tl.store(dx + at, found.to(dx.dtype.element_ty), mask=inside)
    place = partial + program.to(tl.int64) * hidden + col
    tl.store(place, tl.sum(dw, axis=0), mask=col < hidden)


@triton.jit
def add_up(partial, out, count, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < count) & (col[None, :] < hidden)
        total += tl.load(partial + row[:, None].to(tl.int64) * hidden + col[None, :], mask=inside, other=0.0)
    tl.store(out + col, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=col < hidden)


def layout_of(hidden):
    """(rows of a tile, its columns, warps)."""
    block = max(16, triton.next_power_of_2(hidden))
    if block > LARGEST:
        raise ValueError(f"rows of {hidden} do not stay in registers")
    rows = max(1, min(64, TILE // block))
    return rows, block, max(1, min(16, rows * block // (32 * LANE)))


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
        hidden = x.shape[-1]
        rows = x.numel() // max(1, hidden)
        out = torch.empty_like(x)
        rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
        tall, block, warps = layout_of(hidden)
        forward_rows[(triton.cdiv(rows, tall),)](
            x, residual, weight, out, rstd, rows, hidden, eps, ROWS=tall, BLOCK=block, num_warps=warps
        )
        ctx.save_for_backward(x, residual, weight, rstd)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, residual, weight, rstd = ctx.saved_tensors
        dy, hidden, rows = dy.contiguous(), x.shape[-1], rstd.numel()
        tall, block, warps = layout_of(hidden)
        programs = max(1, min(PROGRAMS, triton.cdiv(rows, tall)))
        dx, dweight = torch.empty_like(x), torch.empty_like(weight)
        partial = torch.empty(programs, hidden, dtype=torch.float32, device=x.device)
        stages = STAGES if 3 * STAGES * tall * block * x.element_size() <= SHARED else 1
        backward_rows[(programs,)](
            x, residual, weight, rstd, dy, dx, partial, rows, hidden,
            ROWS=tall, BLOCK=block, STAGES=stages, num_warps=warps,
        )  # fmt: skip
        add_up[(triton.cdiv(hidden, 32),)](partial, dweight, programs, hidden, ROWS=64, BLOCK=32, num_warps=4)
        return dx, dx, dweight, None


class ModelNew(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps

    def forward(self, x, residual):
        return Normed.apply(x, residual, self.weight, self.eps)
