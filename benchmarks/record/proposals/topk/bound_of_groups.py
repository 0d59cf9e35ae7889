"""The k-th largest of some groups' maxima is a bound that few more than k elements reach; only those are ranked.

A row is read once, for the largest of each group, as a pair of the number and its place. All pairs differ, so exactly k
groups reach the k-th of them: those alone are read again, and hold all that reaches it. Numbers become integers in the
same order (NaN above all, 0 and -0 equal). Bound by memory.

A row of a quarter of a megabyte is searched by one program or two; fewer and longer rows are shared out. Short rows
stay in registers, one maximum at a time.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [1024, 2048, 4096], "WARPS": [4, 8], "PROGRAMS": [528, 1056, 2112], "ELEMENTS": [1024, 2048, 4096]}
CONSTRAINTS = ["BLOCK >= 128 * WARPS"]
BLOCK = 2048
WARPS = 4
PROGRAMS = 1056
ELEMENTS = 2048
MOST = 4096
"""Maxima of a row, all of which one program searches."""
_LOWEST = tl.constexpr(-(2**31))
"""Below the key of -inf: of padding, and of what was taken."""


@triton.jit
def _key(x):
    """Integers in the order of the numbers: NaN above all, 0 and -0 equal."""
    x = x.to(tl.float32)
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, 0x7FFFFFFF, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))


@triton.jit
def _few(x, values, places, rows, cols, k, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    ok = (row < rows) & (col < cols)
    key = tl.where(ok, _key(tl.load(x + row * cols + col, mask=ok, other=0.0)), _LOWEST)
    for rank in range(0, k):
        top = tl.max(key, axis=1, keep_dims=True)
        place = tl.min(tl.where((key == top) & (col < cols), col, COLS - 1), axis=1, keep_dims=True)
        kept = tl.load(x + row * cols + place, mask=row < rows)
        tl.store(values + row * k + rank, kept, mask=row < rows)
        tl.store(places + row * k + rank, place.to(tl.int64), mask=row < rows)
        key = tl.where(col == place, _LOWEST, key)


@triton.jit
def _maxima(x, maxima, cols, span, parts, BLOCK: tl.constexpr, KEEP: tl.constexpr):
    """The largest pair of each group: neighbours in a part's blocks, the same ones of each block. Of equal numbers the
    first is the larger pair."""
    row, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    lane = tl.arange(0, BLOCK)
    end = tl.minimum((part + 1) * span, cols)
    most = tl.full([BLOCK], _LOWEST, tl.int32)
    at = tl.full([BLOCK], 0, tl.int32)
    for start in range(part * span, end, BLOCK):
        col = start + lane
        key = tl.where(col < end, _key(tl.load(x + row * cols + col, mask=col < end, other=0.0)), _LOWEST)
        at = tl.where(key > most, col, at)  # of equal ones the first stays
        most = tl.maximum(most, key)
    pair = (most.to(tl.int64) << 32) | (at ^ 0x7FFFFFFF).to(tl.int64)
    pair = tl.max(tl.reshape(pair, [KEEP, BLOCK // KEEP]), axis=1)
    tl.store(maxima + tl.program_id(0).to(tl.int64) * KEEP + tl.arange(0, KEEP), pair)


@triton.jit
def _bound(maxima, bounds, winners, counts, groups, k, GROUPS: tl.constexpr):
    """The k-th largest of a row's maxima, by bisection, and the k groups that reach it: all of them differ."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, GROUPS)
    pair = tl.load(maxima + row * groups + lane, mask=lane < groups, other=tl.full([], _LOWEST, tl.int64) << 32)
    low, high = tl.min(pair, axis=0), tl.max(pair, axis=0) + 1
    count = k + 1
    while (low + 1 < high) & (count != k):
        middle = (low & high) + ((low ^ high) >> 1)  # no overflow, whatever the signs
        reached = tl.sum((pair >= middle).to(tl.int32), axis=0)
        enough = reached >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        count = tl.where(enough, reached, count)
    reaches = (pair >= low) & (lane < groups)
    place = tl.cumsum(reaches.to(tl.int32), axis=0) - 1
    tl.store(winners + row * k + place, lane, mask=reaches & (place < k))
    tl.store(bounds + row, low)
    tl.store(counts + row, 0)


@triton.jit
def _collect(
    x, bounds, winners, counts, found, cols, span, k, size, room, BLOCK: tl.constexpr, KEEP: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Whatever reaches its row's bound, in any order, out of the k groups whose largest does."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = index < k * size
    group = tl.load(winners + row * k + index // size, mask=inside, other=0)
    part, own = group // KEEP, index % size
    WIDTH: tl.constexpr = BLOCK // KEEP
    col = part * span + own // WIDTH * BLOCK + group % KEEP * WIDTH + own % WIDTH
    inside = inside & (col < tl.minimum((part + 1) * span, cols))
    key = _key(tl.load(x + row * cols + col, mask=inside, other=0.0))
    pair = (key.to(tl.int64) << 32) | (col ^ 0x7FFFFFFF).to(tl.int64)
    reaches = inside & (pair >= tl.load(bounds + row))
    place = tl.atomic_add(counts + row + tl.zeros([TILE], tl.int32), 1, mask=reaches, sem="relaxed")
    tl.store(found + row * room + place, pair, mask=reaches & (place < room))


@triton.jit
def _rank(x, found, counts, values, places, cols, room, k, SIZE: tl.constexpr):
    """Each one's rank is the number of those above it."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(counts + row), room)
    lane = tl.arange(0, SIZE)
    for start in range(0, count, SIZE):
        mine = start + lane
        pair = tl.load(found + row * room + mine, mask=mine < count, other=0)
        rank = tl.zeros([SIZE], tl.int32)
        for first in range(0, count, SIZE):
            other = first + lane
            pair2 = tl.load(found + row * room + other, mask=other < count, other=0)
            above = (pair2[None, :] > pair[:, None]) & (other < count)[None, :]
            rank += tl.sum(above.to(tl.int32), axis=1)
        kept = (mine < count) & (rank < k)
        place = (pair & 0x7FFFFFFF) ^ 0x7FFFFFFF
        tl.store(values + row * k + rank, tl.load(x + row * cols + place, mask=kept), mask=kept)
        tl.store(places + row * k + rank, place, mask=kept)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        x = x.contiguous()
        rows, cols = x.shape
        k = min(self.k, cols)
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or cols >= 2**31 - BLOCK:
            raise NotImplementedError("rows of fewer than 2^31 floats of 16 or 32 bits")
        values = torch.empty((rows, k), dtype=x.dtype, device=x.device)
        places = torch.empty((rows, k), dtype=torch.int64, device=x.device)
        if not values.numel():
            return values, places
        if cols <= 4096 and k <= 16:
            width = triton.next_power_of_2(cols)
            size = max(1, ELEMENTS // width)
            warps = max(1, min(8, size * width // 512))
            _few[(triton.cdiv(rows, size),)](x, values, places, rows, cols, k, ROWS=size, COLS=width, num_warps=warps)
            return values, places
        keep = max(128, triton.next_power_of_2(4 * k))  # of a program
        block = max(BLOCK, keep)
        if keep > MOST:
            raise NotImplementedError(f"more than {MOST // 4} of a row")
        parts = min(triton.cdiv(PROGRAMS, rows), MOST // keep, triton.cdiv(cols, 4 * block))
        span = triton.cdiv(triton.cdiv(cols, parts), block) * block
        parts = triton.cdiv(cols, span)
        if cols < block:  # a group for each column: k of them hold something
            keep = block
        size = block // keep * (span // block)  # of a group, and k of them reach the bound
        room = min(cols, k * size)
        pairs = torch.empty(rows * (parts * keep + room + 1), dtype=torch.int64, device=x.device)
        maxima, found, bounds = pairs.split([rows * parts * keep, rows * room, rows])
        winners, counts = torch.empty(rows * (k + 1), dtype=torch.int32, device=x.device).split([rows * k, rows])
        _maxima[(rows * parts,)](x, maxima, cols, span, parts, BLOCK=block, KEEP=keep, num_warps=WARPS)
        groups = triton.next_power_of_2(parts * keep)
        warps = max(1, min(8, groups // 512))
        _bound[(rows,)](maxima, bounds, winners, counts, parts * keep, k, GROUPS=groups, num_warps=warps)
        _collect[(rows, triton.cdiv(k * size, 512))](
            x, bounds, winners, counts, found, cols, span, k, size, room, BLOCK=block, KEEP=keep, TILE=512
        )
        _rank[(rows,)](x, found, counts, values, places, cols, room, k, SIZE=64, num_warps=4)
        return values, places
