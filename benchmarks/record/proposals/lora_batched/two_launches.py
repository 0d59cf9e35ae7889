"""Tokens are listed by adapter, so that each adapter's weights meet only its own tokens: the first product is split
along the inputs, the second adds its parts up on the way and the base's output at the end. Few tokens are listed by the
first product's programs themselves, each for its own adapter, as small workloads wait for the host: two launches, one
piece of scratch memory, and what only depends on shapes is computed once. Many are listed by a launch before.

Bound by memory: base, x and result once. Sizes that are whole 16 bytes and no multiples of 16 are passed as multiples
of `UNIT`, or the compiler would fetch them by 2 bytes at a time.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"TALL": [16, 32, 64], "DEEP": [64, 128], "WIDE": [128, 256], "SPLITS": [4, 8, 16], "STAGES": [2, 3, 4]}
TALL = 32
DEEP = 64
WIDE = 128
SPLITS = 8
STAGES = 3
MANY = 2048


# Scratch memory is of float32: the first product's parts, then the list of tokens and each adapter's end in it, which
# are integers by their bits.
@triton.jit
def number_of(place, here):
    return tl.load(place, mask=here, other=0.0).to(tl.int32, bitcast=True)


@triton.jit
def note(place, number, here):
    tl.store(place, number.to(tl.float32, bitcast=True), mask=here)


@triton.jit
def list_tokens(adapter, order, adapters, tokens, BLOCK: tl.constexpr):
    own = tl.program_id(0)
    less = tl.zeros((BLOCK,), dtype=tl.int32)
    for at in range(0, tokens, BLOCK):
        token = at + tl.arange(0, BLOCK)
        less += (tl.load(adapter + token, mask=token < tokens, other=own) < own).to(tl.int32)
    place = tl.sum(less, axis=0)
    for at in range(0, tokens, BLOCK):
        token = at + tl.arange(0, BLOCK)
        mine = (tl.load(adapter + token, mask=token < tokens, other=-1) == own).to(tl.int32)
        note(order + place + tl.cumsum(mine, axis=0) - 1, token, mine > 0)
        place += tl.sum(mine, axis=0)
    note(order + tokens + own, place, place >= 0)


@triton.jit
def tile_of(ends, adapters, tile, ADAPTERS: tl.constexpr, TALL: tl.constexpr):
    number = tl.arange(0, ADAPTERS)
    stops = number_of(ends + number, number < adapters)
    begins = number_of(ends + number - 1, (number > 0) & (number < adapters))
    upto = tl.cumsum(tl.where(number < adapters, (stops - begins + TALL - 1) // TALL, 0), axis=0)
    own = tl.sum((upto <= tile).to(tl.int32), axis=0)
    first = tile - tl.sum(tl.where(number == own - 1, upto, 0), axis=0)
    low = tl.sum(tl.where(number == own, begins, 0), axis=0) + first * TALL
    return own, low, tl.sum(tl.where(number == own, stops, 0), axis=0)


@triton.jit
def down_tile(
    x, a, ranks, order, low, own, begin, stop, tokens, rank, inner, span,
    RANK: tl.constexpr, TALL: tl.constexpr, DEEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    place = begin + tl.arange(0, TALL)
    here = place < stop
    token = number_of(order + place, here).to(tl.int64)
    line, deep = tl.arange(0, RANK), tl.arange(0, DEEP)
    used = line < tl.load(ranks + own)
    from_x = x + token[:, None] * inner + deep[None, :]
    from_a = a + (tl.cast(own, tl.int64) * rank + line)[None, :] * inner + deep[:, None]
    acc = tl.zeros((TALL, RANK), dtype=tl.float32)
    for at in tl.range(split * span, tl.minimum((split + 1) * span, inner), DEEP, num_stages=STAGES):
        left = deep + at < inner
        rows = tl.load(from_x + at, mask=here[:, None] & left[None, :], other=0.0)
        columns = tl.load(from_a + at, mask=left[:, None] & used[None, :], other=0.0)
        acc = tl.dot(rows, columns, acc, input_precision="ieee")
    to = low + ((split * tokens + place).to(tl.int64) * rank)[:, None] + line[None, :]
    tl.store(to, acc, mask=here[:, None] & (line[None, :] < rank))


@triton.jit
def go_down(
    x, a, ranks, order, low, adapters, tokens, rank, inner_units, span,
    UNIT: tl.constexpr, ADAPTERS: tl.constexpr, RANK: tl.constexpr, TALL: tl.constexpr, DEEP: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    own, begin, stop = tile_of(order + tokens, adapters, tl.program_id(0), ADAPTERS, TALL)
    if own < adapters:
        down_tile(
            x, a, ranks, order, low, own, begin, stop, tokens, rank, inner_units * UNIT, span, RANK, TALL, DEEP, STAGES
        )  # fmt: skip


@triton.jit
def list_and_go_down(
    x, a, ranks, adapter, low, adapters, tokens, rank, inner_units, span,
    UNIT: tl.constexpr, RANK: tl.constexpr, TALL: tl.constexpr, DEEP: tl.constexpr, STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    own = tl.program_id(0)
    order = low + tl.cast(tl.num_programs(1) * tokens, tl.int64) * rank
    number = tl.arange(0, BLOCK)
    ids = tl.load(adapter + number, mask=number < tokens, other=adapters)
    mine = (ids == own).to(tl.int32)
    begin = tl.sum((ids < own).to(tl.int32), axis=0)
    stop = begin + tl.sum(mine, axis=0)
    # All programs of an adapter write the same; each reads what it wrote itself.
    note(order + begin + tl.cumsum(mine, axis=0) - 1, number, mine > 0)
    note(order + tokens + own, stop, stop >= 0)
    tl.debug_barrier()
    for first in range(begin, stop, TALL):
        down_tile(
            x, a, ranks, order, low, own, first, stop, tokens, rank, inner_units * UNIT, span, RANK, TALL, DEEP, STAGES
        )  # fmt: skip


@triton.jit
def go_up(
    base, b, ranks, low, out, adapters, tokens, rank, outer_units,
    UNIT: tl.constexpr, ADAPTERS: tl.constexpr, RANK: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    outer = outer_units * UNIT
    order = low + tl.cast(SPLITS * tokens, tl.int64) * rank
    own, begin, stop = tile_of(order + tokens, adapters, tl.program_id(0), ADAPTERS, TALL)
    if own < adapters:
        place = begin + tl.arange(0, TALL)
        here = place < stop
        line, col = tl.arange(0, RANK), tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        used = line < tl.load(ranks + own)
        rows = tl.zeros((TALL, RANK), dtype=tl.float32)
        for split in tl.static_range(SPLITS):
            from_low = low + ((split * tokens + place).to(tl.int64) * rank)[:, None] + line[None, :]
            rows += tl.load(from_low, mask=here[:, None] & (line[None, :] < rank), other=0.0)
        rows = tl.where(used[None, :], rows, 0.0)  # afterwards: a mask by a loaded number is read number by number
        from_b = b + (tl.cast(own, tl.int64) * rank + line)[:, None] * outer + col[None, :]
        columns = tl.load(from_b, mask=used[:, None] & (col[None, :] < outer), other=0.0)
        if columns.dtype == tl.float16:
            # A row's largest number is brought to 2^14 and what fp16 leaves of each goes through the product too: sums
            # beyond 65,504 do not overflow on the way (in eager infinities decide the sign), and of a row of mixed
            # sizes the small ones are not lost (2.6 % of a column were, measured).
            exponent = tl.max(tl.abs(rows), axis=1).to(tl.int32, bitcast=True) >> 23
            exponent = tl.maximum(exponent, 87)
            up = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
            down = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
            scaled = rows * up[:, None]
            kept = scaled.to(tl.float16)
            rest = tl.where(tl.abs(kept) < float("inf"), scaled - kept.to(tl.float32), 0.0)
            # The rest, often zero and of either sign, has no part where b is not finite: 0 times infinity is NaN.
            small = tl.dot(rest.to(tl.float16), columns)
            small = tl.where(tl.abs(small) < float("inf"), small, 0.0)
            found = tl.dot(kept, columns, small) * down[:, None]
        else:
            found = tl.dot(rows.to(columns.dtype), columns, input_precision="ieee")
        token = number_of(order + place, here).to(tl.int64)
        at = token[:, None] * outer + col[None, :]
        inside = here[:, None] & (col[None, :] < outer)
        found += tl.load(base + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


def plan_of(adapters, rank, inner, tokens, outer, itemsize):
    """What only depends on sizes: scratch memory's, whether tokens are many, the launches' grids and arguments."""
    if rank > 256:
        raise ValueError(f"adapters of rank {rank} do not fit into a tile")
    many = tokens >= MANY
    tall, splits = (64, 2) if many else (TALL, max(1, min(SPLITS, triton.cdiv(inner, DEEP))))
    span = triton.cdiv(triton.cdiv(inner, DEEP), splits) * DEEP
    unit = 16 // itemsize
    unit = 1 if inner % unit or outer % unit else unit
    tiles, columns = triton.cdiv(tokens, tall) + adapters, triton.cdiv(outer, WIDE)
    sizes = {"UNIT": unit, "RANK": max(16, triton.next_power_of_2(rank)), "TALL": tall, "num_warps": 4}
    listed = {"ADAPTERS": triton.next_power_of_2(adapters)}
    down = {"DEEP": DEEP, "STAGES": STAGES, **sizes}
    down |= listed if many else {"BLOCK": max(128, triton.next_power_of_2(tokens))}
    up = {"WIDE": WIDE, "SPLITS": splits, **listed, **sizes}
    down_numbers, up_numbers = (adapters, tokens, rank, inner // unit, span), (adapters, tokens, rank, outer // unit)
    parts = splits * tokens * rank
    return (
        many, parts, parts + tokens + adapters, (tiles if many else adapters, splits), down_numbers, down,
        (tiles, columns), up_numbers, up,
    )  # fmt: skip


class ModelNew(nn.Module):
    def __init__(self, adapters, rank):
        super().__init__()
        self.register_buffer("ranks", torch.tensor([max(1, rank >> (place % 4)) for place in range(adapters)]))
        self.plans = {}

    def forward(self, base, x, a, b, adapter):
        base, x, a, b = base.contiguous(), x.contiguous(), a.contiguous(), b.contiguous()
        adapter = adapter.contiguous()
        sizes = (*a.shape, *base.shape, base.itemsize)
        plan = self.plans.get(sizes)
        if plan is None:
            plan = self.plans[sizes] = plan_of(*sizes)
        many, parts, needed, down_grid, down_numbers, down, up_grid, up_numbers, up = plan
        out = torch.empty_like(base)
        if not out.numel():
            return out
        ranks = self._buffers["ranks"]  # out of the dictionary: a buffer by attribute costs 2 us
        low = torch.empty(needed, dtype=torch.float32, device=x.device)
        if many:
            order = low[parts:]
            list_tokens[(sizes[0],)](adapter, order, sizes[0], sizes[3], BLOCK=1024, num_warps=4)
            go_down[down_grid](x, a, ranks, order, low, *down_numbers, **down)
        else:
            list_and_go_down[down_grid](x, a, ranks, adapter, low, *down_numbers, **down)
        go_up[up_grid](base, b, ranks, low, out, *up_numbers, **up)
        return out
