"""Rows stay in registers; backward keeps the sums for weight and bias in registers over many rows, and a last small
kernel adds up what the programs found. Bound by memory: 5 tensors of traffic, forward and backward.
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
def forward_rows(x, weight, bias, out, mean, rstd, rows, hidden, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (col[None, :] < hidden)
    at = row[:, None].to(tl.int64) * hidden + col[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    middle = tl.sum(value, axis=1) / hidden
    value = tl.where(col[None, :] < hidden, value - middle[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=1) / hidden + eps)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(rstd + row, scale, mask=row < rows)
    w = tl.load(weight + col, mask=col < hidden, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=col < hidden, other=0.0).to(tl.float32)
    found = value * scale[:, None] * w[None, :] + b[None, :]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def backward_rows(
    x, weight, mean, rstd, dy, dx, partial, rows, hidden,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    col = tl.arange(0, BLOCK)
    w = tl.load(weight + col, mask=col < hidden, other=0.0).to(tl.float32)
    dw = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    db = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    tiles = tl.cdiv(rows, ROWS)
    for tile in tl.range(program, tiles, programs, num_stages=STAGES):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)  # the last rows first: the L2 cache still has them
        inside = (row[:, None] < rows) & (col[None, :] < hidden)
        at = row[:, None].to(tl.int64) * hidden + col[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=row < rows, other=0.0)
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)
        normed = tl.where(inside, (value - middle[:, None]) * scale[:, None], 0.0)
        dw += g * normed
        db += g
        g *= w[None, :]
        along = tl.sum(g * normed, axis=1) / hidden
        level = tl.sum(g, axis=1) / hidden
        found = scale[:, None] * (g - level[:, None] - normed * along[:, None])
        tl.store(dx + at, found.to(dx.dtype.element_ty), mask=inside)
    place = partial + program.to(tl.int64) * 2 * hidden + col
    tl.store(place, tl.sum(dw, axis=0), mask=col < hidden)
    tl.store(place + hidden, tl.sum(db, axis=0), mask=col < hidden)


@triton.jit
def add_up(partial, dweight, dbias, count, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    db = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < count) & (col[None, :] < hidden)
        place = partial + row[:, None].to(tl.int64) * 2 * hidden + col[None, :]
        dw += tl.load(place, mask=inside, other=0.0)
        db += tl.load(place + hidden, mask=inside, other=0.0)
    tl.store(dweight + col, tl.sum(dw, axis=0).to(dweight.dtype.element_ty), mask=col < hidden)
    tl.store(dbias + col, tl.sum(db, axis=0).to(dbias.dtype.element_ty), mask=col < hidden)


def layout_of(hidden):
    """(rows of a tile, its columns, warps)."""
    block = max(16, triton.next_power_of_2(hidden))
    if block > LARGEST:
        raise ValueError(f"rows of {hidden} do not stay in registers")
    rows = max(1, min(64, TILE // block))
    return rows, block, max(1, min(16, rows * block // (32 * LANE)))


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        hidden = x.shape[-1]
        rows = x.numel() // max(1, hidden)
        out = torch.empty_like(x)
        mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
        tall, block, warps = layout_of(hidden)
        forward_rows[(triton.cdiv(rows, tall),)](
            x, weight, bias, out, mean, rstd, rows, hidden, eps, ROWS=tall, BLOCK=block, num_warps=warps
        )
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        dy, hidden, rows = dy.contiguous(), x.shape[-1], rstd.numel()
        tall, block, warps = layout_of(hidden)
        programs = max(1, min(PROGRAMS, triton.cdiv(rows, tall)))
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        partial = torch.empty(programs, 2, hidden, dtype=torch.float32, device=x.device)
        stages = STAGES if 2 * STAGES * tall * block * x.element_size() <= SHARED else 1
        backward_rows[(programs,)](
            x, weight, mean, rstd, dy, dx, partial, rows, hidden,
            ROWS=tall, BLOCK=block, STAGES=stages, num_warps=warps,
        )  # fmt: skip
        add_up[(triton.cdiv(hidden, 32),)](partial, dweight, dbias, programs, hidden, ROWS=64, BLOCK=32, num_warps=4)
        return dx, dweight, dbias, None


class ModelNew(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))

    def forward(self, x):
        return Normed.apply(x, self.norm.weight, self.norm.bias, self.norm.eps)
