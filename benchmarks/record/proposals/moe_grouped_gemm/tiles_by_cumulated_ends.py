"""One launch and no synchronisation: a program finds its expert and its rows by comparing its number with the
cumulated tiles of all experts, so that skewed loads and empty experts cost nothing. Bound by the tensor cores, or by
the weights' bytes where tokens are few.

Many tokens are fetched by descriptors (TMA), few by pointers. Sizes that are whole 16 bytes but no multiple of 16 are
passed as multiples of `UNIT`, since the compiler knows no other alignment: it fetched rows of 1,000 halves by 2 bytes
at a time, and 750 us were eleven times what their bytes take.
"""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor

TUNABLES = {
    "TALL": [64, 128], "WIDE": [128, 256], "DEEP": [64], "STAGES": [3, 4], "BAND": [8, 16, 32], "DESCRIBED": [0, 1],
    "FEW_WIDE": [64, 128], "FEW_DEEP": [64, 128],
}  # fmt: skip
TALL = 128
WIDE = 256
DEEP = 64
STAGES = 3
BAND = 16
DESCRIBED = 1
FEW_WIDE = 128
FEW_DEEP = 64
FEW = 64


@triton.jit
def _place(tiles, broad, BAND: tl.constexpr):
    """Tile of rows and of columns: bands of rows that the L2 cache can hold, with all columns each, so that weights
    stream once a band."""
    program = tl.program_id(0)
    band = program // (BAND * broad)
    size = tl.minimum(tiles - band * BAND, BAND)
    within = program % (BAND * broad)
    return band * BAND + within % size, within // size


@triton.jit
def _expert_of(tile, ends, experts, EXPERTS: tl.constexpr, TALL: tl.constexpr):
    """A tile's expert (`experts` for none), its first row, and where its expert's rows end."""
    number = tl.arange(0, EXPERTS)
    stops = tl.load(ends + number, mask=number < experts, other=0).to(tl.int32)
    begins = tl.load(ends + number - 1, mask=(number > 0) & (number < experts), other=0).to(tl.int32)
    upto = tl.cumsum(tl.where(number < experts, (stops - begins + TALL - 1) // TALL, 0), axis=0)
    expert = tl.sum((upto <= tile).to(tl.int32), axis=0)
    own = number == expert
    first = tile - tl.sum(tl.where(number == expert - 1, upto, 0), axis=0)
    return expert, tl.sum(tl.where(own, begins, 0), axis=0) + first * TALL, tl.sum(tl.where(own, stops, 0), axis=0)


@triton.jit
def _pointed(
    x, weight, ends, out, tiles, experts, inner_units, outer_units,
    UNIT: tl.constexpr, EXPERTS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
    EVEN: tl.constexpr, BAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    inner, outer = inner_units * UNIT, outer_units * UNIT
    tile, across = _place(tiles, tl.cdiv(outer, WIDE), BAND)
    expert, first_row, stop = _expert_of(tile, ends, experts, EXPERTS, TALL)
    if expert < experts:
        row, col = first_row + tl.arange(0, TALL), across * WIDE + tl.arange(0, WIDE)
        here = row < stop
        deep = tl.arange(0, DEEP)
        # What lies beyond the expert's last row or the last column is read from the first ones, and never stored.
        from_x = x + tl.where(here, row, 0).to(tl.int64)[:, None] * inner + deep[None, :]
        from_weight = weight + (tl.cast(expert, tl.int64) * inner + deep)[:, None] * outer + (col % outer)[None, :]
        acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
        for at in tl.range(0, inner, DEEP, num_stages=STAGES):
            if EVEN:
                a, b = tl.load(from_x + at), tl.load(from_weight)
            else:
                left = deep + at < inner
                a = tl.load(from_x + at, mask=left[None, :], other=0.0)
                b = tl.load(from_weight, mask=left[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision="ieee")
            from_weight += DEEP * outer
        inside = here[:, None] & (col[None, :] < outer)
        to = out + row.to(tl.int64)[:, None] * outer + col[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _described(
    x, weight, ends, out, tiles, experts, inner_units, outer_units,
    UNIT: tl.constexpr, EXPERTS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
    BAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    inner, outer = inner_units * UNIT, outer_units * UNIT
    tile, across = _place(tiles, tl.cdiv(outer, WIDE), BAND)
    expert, first_row, stop = _expert_of(tile, ends, experts, EXPERTS, TALL)
    if expert < experts:
        acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
        for at in tl.range(0, inner, DEEP, num_stages=STAGES):
            # Rows of the next expert are multiplied too, and never stored; beyond the last one there are zeros.
            a = x.load([first_row, at])
            b = weight.load([expert, at, across * WIDE]).reshape(DEEP, WIDE)
            acc = tl.dot(a, b, acc)
        row, col = first_row + tl.arange(0, TALL), across * WIDE + tl.arange(0, WIDE)
        inside = (row < stop)[:, None] & (col[None, :] < outer)
        to = out + row.to(tl.int64)[:, None] * outer + col[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, weight, ends):
        x, weight = x.contiguous(), weight.contiguous()
        (tokens, inner), (experts, _inner, outer) = x.shape, weight.shape
        out = torch.empty(tokens, outer, dtype=x.dtype, device=x.device)
        if not tokens:
            return out
        few, unit = tokens < FEW * experts, 16 // x.itemsize
        aligned = not (inner % unit or outer % unit or x.data_ptr() % 16 or weight.data_ptr() % 16)
        unit = unit if aligned else 1
        sizes = (experts, inner // unit, outer // unit)
        known = {"UNIT": unit, "EXPERTS": triton.next_power_of_2(experts), "BAND": BAND, "STAGES": STAGES}
        if DESCRIBED and aligned and x.itemsize == 2 and not few and inner >= DEEP and outer >= WIDE:
            tiles = triton.cdiv(tokens, TALL) + experts
            _described[(tiles * triton.cdiv(outer, WIDE),)](
                TensorDescriptor.from_tensor(x, [TALL, DEEP]), TensorDescriptor.from_tensor(weight, [1, DEEP, WIDE]),
                ends, out, tiles, *sizes, TALL=TALL, WIDE=WIDE, DEEP=DEEP, **known, num_warps=TALL * WIDE // 4096,
            )  # fmt: skip
            return out
        tall = 32 if 4 * tokens < FEW * experts else 64 if few else TALL
        wide, deep, warps = WIDE, DEEP, TALL * WIDE // 4096
        if few:
            wide, deep, warps = FEW_WIDE, FEW_DEEP, 4
        if x.itemsize == 4:
            wide, deep, warps = 128, 32, 4
        tiles = triton.cdiv(tokens, tall) + experts
        _pointed[(tiles * triton.cdiv(outer, wide),)](
            x, weight, ends, out, tiles, *sizes, TALL=tall, WIDE=wide, DEEP=deep, EVEN=inner % deep == 0, **known,
            num_warps=warps,
        )  # fmt: skip
        return out
