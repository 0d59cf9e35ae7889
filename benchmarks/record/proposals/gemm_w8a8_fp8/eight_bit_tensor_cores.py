"""The 8-bit operands go to the tensor cores as they are, at twice the rate of 16 bits, sums are promoted to float32
after every 32 or 64 products, and scales and bias are applied to the accumulator. Few rows are split along the inputs.
Bound by the tensor cores, for few rows by the weights' bytes.

Hopper's 8-bit sums are cut off 13 bits below the largest addend. Where all products have one sign, the result is 6e-4
too small when they are promoted after 128 (measured), 1.3e-4 after 64 and 8e-6 after 32 (of a model that agrees with
what was measured): a quarter of fp16's rounding unit is 1.2e-4, of bf16's 1e-3.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"TALL": [64, 128], "WIDE": [128, 256], "DEEP": [64, 128], "STAGES": [3, 4], "SPLITS": [1, 2, 4]}
TALL = 128
WIDE = 128
DEEP = 128
STAGES = 3
SPLITS = 4
FEW = 64
BAND = 8


@triton.jit
def multiply(
    x, weight, x_scale, weight_scale, bias, out, rows, inner, outer, span,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, SPLIT: tl.constexpr, BAND: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr, PROMOTED: tl.constexpr,
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    high, broad = tl.cdiv(rows, TALL), tl.cdiv(outer, WIDE)
    band = program // (BAND * broad)
    size = tl.minimum(high - band * BAND, BAND)
    row = (band * BAND + program % (BAND * broad) % size) * TALL + tl.arange(0, TALL)
    col = program % (BAND * broad) // size * WIDE + tl.arange(0, WIDE)
    deep = tl.arange(0, DEEP)
    # What lies beyond the last row or column is read from the first ones, and never stored.
    from_x = x + (row % rows)[:, None].to(tl.int64) * inner + deep[None, :]
    from_weight = weight + (col % outer)[None, :].to(tl.int64) * inner + deep[:, None]
    acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for at in tl.range(split * span, tl.minimum((split + 1) * span, inner), DEEP, num_stages=STAGES):
        if EVEN:
            a, b = tl.load(from_x + at), tl.load(from_weight + at)
        else:
            left = deep + at < inner
            a = tl.load(from_x + at, mask=left[None, :], other=0.0)
            b = tl.load(from_weight + at, mask=left[:, None], other=0.0)
        acc = tl.dot(a, b, acc, max_num_imprecise_acc=PROMOTED)
    inside = (row[:, None] < rows) & (col[None, :] < outer)
    at = row[:, None].to(tl.int64) * outer + col[None, :]
    if SPLIT:
        tl.store(out + split.to(tl.int64) * rows * outer + at, acc, mask=inside)
    else:
        first = tl.load(x_scale + row, mask=row < rows, other=0.0)
        second = tl.load(weight_scale + col, mask=col < outer, other=0.0)
        more = tl.load(bias + col, mask=col < outer, other=0.0).to(tl.float32)
        found = acc * first[:, None] * second[None, :] + more[None, :]
        tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_up(parts, x_scale, weight_scale, bias, out, rows, outer, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < outer
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * rows + row).to(tl.int64) * outer + col, mask=inside, other=0.0)
    scale = tl.load(x_scale + row) * tl.load(weight_scale + col, mask=inside, other=0.0)
    more = tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * outer + col, (total * scale + more).to(out.dtype.element_ty), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, outer, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outer, dtype=getattr(torch, dtype)))

    def forward(self, x, weight, x_scale, weight_scale):
        x, weight = x.contiguous(), weight.contiguous()
        (rows, inner), outer = x.shape, weight.shape[0]
        out = torch.empty(rows, outer, dtype=self.bias.dtype, device=x.device)
        few = rows <= FEW
        tall = FEW if few else TALL  # fewer than 64 rows would take other instructions, which do not promote
        wide, splits = (128, min(SPLITS, triton.cdiv(inner, DEEP))) if few else (WIDE, 1)
        span = triton.cdiv(triton.cdiv(inner, DEEP), splits) * DEEP
        found = torch.empty(splits, rows, outer, dtype=torch.float32, device=x.device) if splits > 1 else out
        multiply[(triton.cdiv(rows, tall) * triton.cdiv(outer, wide), splits)](
            x, weight, x_scale, weight_scale, self.bias, found, rows, inner, outer, span,
            TALL=tall, WIDE=wide, DEEP=DEEP, SPLIT=splits > 1, BAND=BAND, EVEN=inner % DEEP == 0,
            STAGES=STAGES, PROMOTED=64 if out.dtype is torch.bfloat16 else 32, num_warps=4 if few else 8,
        )  # fmt: skip
        if splits > 1:
            add_up[(rows, triton.cdiv(outer, 1024))](
                found, x_scale, weight_scale, self.bias, out, rows, outer, SPLITS=splits, BLOCK=1024, num_warps=4
            )
        return out
