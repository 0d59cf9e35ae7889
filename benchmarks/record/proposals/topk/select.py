"""A bisection in registers finds the k-th largest key of a piece of a row; what is above it is ranked by counting.

Nothing is sorted but the k that are kept. Bound by memory for short k, by the bisection's passes over registers else.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"PIECE": [4096, 8192], "PER_THREAD": [8, 16], "ELEMENTS": [1024, 2048, 4096]}
PIECE = 8192
PER_THREAD = 16
ELEMENTS = 2048
_LOWEST = tl.constexpr(-(2**31))
"""Below the key of -inf: of padding, and of what was taken."""
_SHIFTS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}
"""Low bits that are the same in every key of a type, so that no bisection need look at them."""


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
def _select(x, found, kept, kept_at, width, pieces, k, SHIFT: tl.constexpr, FIRST: tl.constexpr, PIECE: tl.constexpr):
    """The k largest of a piece, in their order, as keys and places: from x, or from the pieces' results."""
    row = (tl.program_id(0) // pieces).to(tl.int64)
    lane = (tl.program_id(0) % pieces) * PIECE + tl.arange(0, PIECE)
    if FIRST:
        key = _key(tl.load(x + row * width + lane, mask=lane < width, other=0.0))
        place = lane
    else:
        key = tl.load(x + row * width + lane, mask=lane < width, other=_LOWEST)
        place = tl.load(found + row * width + lane, mask=lane < width, other=0x7FFFFFFF)
    key = tl.where(lane < width, key, _LOWEST)
    # The largest threshold that k keys reach lies in [low, high).
    low = tl.cast(_LOWEST >> SHIFT, tl.int64)
    high = (tl.max(key, axis=0) >> SHIFT).to(tl.int64) + 1
    count = PIECE
    while (high - low > 1) & (count != k):
        middle = low + (high - low) // 2
        reached = tl.sum((key >= (middle << SHIFT).to(tl.int32)).to(tl.int32), axis=0)
        enough = reached >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        count = tl.where(enough, reached, count)
    threshold = low.to(tl.int32)
    above = (key >> SHIFT) > threshold
    equal = (key >> SHIFT) == threshold
    ties = k - tl.sum(above.to(tl.int32), axis=0)
    # Both counts in one scan: of those above there are fewer than k, of equal ones at most PIECE.
    flags = tl.where(above, 65536, 0) + tl.where(equal, 1, 0)
    before = tl.cumsum(flags, axis=0) - flags
    equal_before = before & 65535
    chosen = above | (equal & (equal_before < ties))
    at = tl.program_id(0).to(tl.int64) * k + (before >> 16) + tl.minimum(equal_before, ties)
    tl.store(kept + at, key, mask=chosen)
    tl.store(kept_at + at, place, mask=chosen)


@triton.jit
def _rank(x, kept, kept_at, values, places, cols, k, KEEP: tl.constexpr, OTHERS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    mine = tl.arange(0, KEEP)
    key = tl.load(kept + row * k + mine, mask=mine < k, other=_LOWEST)
    place = tl.load(kept_at + row * k + mine, mask=mine < k, other=0)
    rank = tl.zeros([KEEP], tl.int32)
    for start in range(0, k, OTHERS):
        other = start + tl.arange(0, OTHERS)
        key2 = tl.load(kept + row * k + other, mask=other < k, other=_LOWEST)[None, :]
        place2 = tl.load(kept_at + row * k + other, mask=other < k, other=0)[None, :]
        first = (key2 > key[:, None]) | ((key2 == key[:, None]) & (place2 < place[:, None]))
        rank += tl.sum((first & (other < k)[None, :]).to(tl.int32), axis=1)
    value = tl.load(x + row * cols + place, mask=mine < k)
    tl.store(values + row * k + rank, value, mask=mine < k)
    tl.store(places + row * k + rank, place.to(tl.int64), mask=mine < k)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        x = x.contiguous()
        rows, cols = x.shape
        k = min(self.k, cols)
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
        if 2 * k > PIECE:
            raise NotImplementedError("k is too large")
        kept, kept_at, width = x, x, cols
        shift = _SHIFTS[x.dtype]
        while kept is x or width > k:
            piece = min(PIECE, triton.next_power_of_2(width))
            pieces = triton.cdiv(width, piece)
            found = torch.empty((2, rows, pieces * k), dtype=torch.int32, device=x.device)
            _select[(rows * pieces,)](
                kept, kept_at, found[0], found[1], width, pieces, k, SHIFT=shift, FIRST=kept is x, PIECE=piece,
                num_warps=max(1, min(16, piece // (32 * PER_THREAD))),
            )  # fmt: skip
            kept, kept_at, width = found[0], found[1], pieces * k
        keep = triton.next_power_of_2(k)
        _rank[(rows,)](
            x, kept, kept_at, values, places, cols, k, KEEP=keep, OTHERS=min(keep, max(1, 16384 // keep)),
            num_warps=max(1, min(8, keep // 32)),
        )  # fmt: skip
        return values, places
