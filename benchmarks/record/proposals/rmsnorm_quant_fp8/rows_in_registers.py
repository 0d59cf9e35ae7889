"""A row stays in registers from the load to the 8-bit store: one read, half a write. Bound by memory: 3 bytes an
element where 16-bit rows come in.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"TILE": [2048, 4096, 8192, 16384], "LANE": [8, 16, 32]}
TILE = 4096
LANE = 16
LARGEST = 32768


@triton.jit
def quantise_rows(x, weight, out, scales, rows, hidden, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (col[None, :] < hidden)
    at = row[:, None].to(tl.int64) * hidden + col[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + col, mask=col < hidden, other=0.0).to(tl.float32)
    value = value * (1.0 / tl.sqrt(tl.sum(value * value, axis=1) / hidden + eps))[:, None] * w[None, :]
    top = tl.max(tl.abs(value), axis=1)
    broken = tl.sum((value != value).to(tl.int32), axis=1) > 0
    scale = tl.div_rn(tl.where(broken, float("nan"), tl.maximum(top, 1e-6)), 448.0)
    tl.store(scales + row, scale, mask=row < rows)
    value = tl.div_rn(value, tl.broadcast_to(scale[:, None], (ROWS, BLOCK)))
    value = tl.where(value > 448.0, 448.0, tl.where(value < -448.0, -448.0, value))
    tl.store(out + at, value.to(tl.float8e4nv), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps

    def forward(self, x):
        x, hidden = x.contiguous(), x.shape[-1]
        rows, block = x.numel() // max(1, hidden), max(16, triton.next_power_of_2(hidden))
        if block > LARGEST:
            raise ValueError(f"rows of {hidden} do not stay in registers")
        tall = max(1, min(64, TILE // block))
        out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        scales = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
        quantise_rows[(triton.cdiv(rows, tall),)](
            x, self.weight, out, scales, rows, hidden, self.eps,
            ROWS=tall, BLOCK=block, num_warps=max(1, min(16, tall * block // (32 * LANE))),
        )  # fmt: skip
        return out, scales
