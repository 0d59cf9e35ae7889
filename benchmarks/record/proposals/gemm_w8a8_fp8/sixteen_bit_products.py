"""Both operands in fp16, which holds every 8-bit float, and sums in float32: the smaller operand lies in shared memory,
the larger one is widened in registers on its way to the tensor cores, so that its bytes are read once. Scales and bias
are applied to the accumulator. Large products have the smaller operand widened once, before; for the others that launch
and its gap (8 of 50 us) cost more than widening a tile again in each program. Few rows are split along the inputs where
there are too few programs to keep memory busy.

Not the 8-bit instructions, which are twice as fast: Hopper cuts their sums off 13 bits below the largest addend, so
that small products beside large ones are lost (15 % of a column where sizes are mixed, promoted after 64 products;
measured).
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {
    "LARGE": [64, 128],
    "SMALL": [128, 256],
    "DEEP": [64, 128],
    "STAGES": [3, 4],
    "FEW_LARGE": [64, 128],
    "FEW_DEEP": [128, 256],
    "FEW_STAGES": [3, 4, 5],
    "LIGHT_LARGE": [64, 128],
    "LIGHT_SMALL": [64, 128],
}
LARGE = 128
SMALL = 256
DEEP = 64
STAGES = 4
FEW = 64
FEW_LARGE = 64
FEW_DEEP = 128
FEW_STAGES = 4
LIGHT = 1 << 34
LIGHT_LARGE = 128
LIGHT_SMALL = 128
PROGRAMS = 128
BAND = 8


@triton.jit
def widen(narrow, wide, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(wide + at, tl.load(narrow + at, mask=inside, other=0.0).to(tl.float16), mask=inside)


@triton.jit
def multiply(
    large, small, large_scale, small_scale, bias, out, larges, smalls, inner, span, large_step, small_step,
    LARGE: tl.constexpr, SMALL: tl.constexpr, DEEP: tl.constexpr, SPLIT: tl.constexpr, BAND: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr, LARGE_IS_OUT: tl.constexpr,
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    high, broad = tl.cdiv(larges, LARGE), tl.cdiv(smalls, SMALL)
    band = program // (BAND * broad)
    size = tl.minimum(high - band * BAND, BAND)
    i = (band * BAND + program % (BAND * broad) % size) * LARGE + tl.arange(0, LARGE)
    j = program % (BAND * broad) // size * SMALL + tl.arange(0, SMALL)
    deep = tl.arange(0, DEEP)
    # What lies beyond the last row is read from the first ones, and never stored.
    from_large = large + (i % larges)[:, None].to(tl.int64) * inner + deep[None, :]
    from_small = small + (j % smalls)[None, :].to(tl.int64) * inner + deep[:, None]
    acc = tl.zeros((LARGE, SMALL), dtype=tl.float32)
    for at in tl.range(split * span, tl.minimum((split + 1) * span, inner), DEEP, num_stages=STAGES):
        if EVEN:
            a, b = tl.load(from_large + at), tl.load(from_small + at)
        else:
            left = deep + at < inner
            a = tl.load(from_large + at, mask=left[None, :], other=0.0)
            b = tl.load(from_small + at, mask=left[:, None], other=0.0)
        acc = tl.dot(a.to(tl.float16), b.to(tl.float16), acc)
    inside = (i[:, None] < larges) & (j[None, :] < smalls)
    at = i[:, None].to(tl.int64) * large_step + j[None, :].to(tl.int64) * small_step
    if SPLIT:
        tl.store(out + split.to(tl.int64) * larges * smalls + at, acc, mask=inside)
    else:
        acc *= tl.load(large_scale + i, mask=i < larges, other=0.0)[:, None]
        acc *= tl.load(small_scale + j, mask=j < smalls, other=0.0)[None, :]
        if LARGE_IS_OUT:
            acc += tl.load(bias + i, mask=i < larges, other=0.0).to(tl.float32)[:, None]
            tl.store(out + tl.trans(at), tl.trans(acc).to(out.dtype.element_ty), mask=tl.trans(inside))
        else:
            acc += tl.load(bias + j, mask=j < smalls, other=0.0).to(tl.float32)[None, :]
            tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


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
        few, light = rows <= FEW, rows * outer * inner < LIGHT
        by_weight = few or outer > rows  # the weight is the larger operand
        small, large = (x, weight) if by_weight else (weight, x)
        if not (few or light):
            widened = torch.empty(small.shape, dtype=torch.float16, device=x.device)
            widen[(triton.cdiv(small.numel(), 4096),)](small, widened, small.numel(), BLOCK=4096, num_warps=8)
            small = widened
        larges, smalls = large.shape[0], small.shape[0]
        if few:
            high, broad, deep, stages = FEW_LARGE, max(16, triton.next_power_of_2(rows)), FEW_DEEP, FEW_STAGES
        elif light:
            high, broad, deep, stages = LIGHT_LARGE, LIGHT_SMALL, DEEP, STAGES
        else:
            high, broad, deep, stages = LARGE, SMALL, DEEP, STAGES
        programs, steps = triton.cdiv(larges, high) * triton.cdiv(smalls, broad), triton.cdiv(inner, deep)
        splits = max(1, min(PROGRAMS // max(1, programs), steps)) if few else 1
        span = triton.cdiv(steps, splits) * deep
        found = torch.empty(splits, rows, outer, dtype=torch.float32, device=x.device) if splits > 1 else out
        scales = (weight_scale, x_scale) if by_weight else (x_scale, weight_scale)
        multiply[(programs, splits)](
            large, small, *scales, self.bias, found, larges, smalls, inner, span,
            1 if by_weight else outer, outer if by_weight else 1,
            LARGE=high, SMALL=broad, DEEP=deep, SPLIT=splits > 1, BAND=BAND, EVEN=inner % deep == 0,
            STAGES=stages, LARGE_IS_OUT=by_weight, num_warps=8 if high * broad > 8192 else 4,
        )  # fmt: skip
        if splits > 1:
            add_up[(rows, triton.cdiv(outer, 1024))](
                found, x_scale, weight_scale, self.bias, out, rows, outer, SPLITS=splits, BLOCK=1024, num_warps=4
            )
        return out
