"""A tile of jagged rows, each from its aligned start: short rows stay in registers, long ones are read twice.

Bound by memory: one read and one write. Whole vectors of 16 bytes are loaded and stored; what a row shares with its
neighbours at either end is stored element by element.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"LIMIT": [2048, 4096, 8192], "FIT": [1, 2, 4], "ELEMENTS": [2048, 4096], "PER_THREAD": [16, 32]}
LIMIT = 4096
FIT = 2
ELEMENTS = 2048
PER_THREAD = 16


@triton.jit
def _vectors(scores, at, begin, end, VECTOR: tl.constexpr, EVEN: tl.constexpr):
    """The scores at `at`, -inf outside of the row. In a list of whole vectors neighbours are loaded too."""
    inside = (at >= begin) & (at < end)
    # (at // VECTOR) is one number for all of a vector, and so is this mask: 16 bytes are loaded at once.
    near = at // VECTOR < (end + VECTOR - 1) // VECTOR if EVEN else inside
    value = tl.load(scores + at, mask=near, other=0.0).to(tl.float32)
    return tl.where(inside, value, float("-inf")), inside


@triton.jit
def _put(out, at, value, begin, end, inside, VECTOR: tl.constexpr, EVEN: tl.constexpr):
    full = (at // VECTOR >= (begin + VECTOR - 1) // VECTOR) & (at // VECTOR < end // VECTOR)
    tl.store(out + at, value, mask=full if EVEN else inside)


@triton.jit
def _softmax(
    scores, offsets, out, rows, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    begin = tl.load(offsets + row, mask=row < rows, other=0)
    end = tl.load(offsets + row + 1, mask=row < rows, other=0)
    first = begin // VECTOR * VECTOR  # places count from here
    begin = (begin - first).to(tl.int32)
    end = tl.maximum((end - first).to(tl.int32), begin)
    scores += first
    out += first
    longest = tl.max(tl.where(end > begin, end, 0))
    lane = tl.arange(0, BLOCK)[None, :]
    value, inside = _vectors(scores, lane, begin, end, VECTOR, EVEN)
    top = tl.max(value, axis=1, keep_dims=True)
    # A row without a finite number so far: exponentials around 0, since -inf - -inf would be NaN.
    safe = tl.where(top == float("-inf"), 0.0, top)
    power = tl.where(inside, tl.exp(value - safe), 0.0)
    total = tl.sum(power, axis=1, keep_dims=True)
    if longest > BLOCK:
        for start in range(BLOCK, longest, BLOCK):
            value, inside = _vectors(scores, start + lane, begin, end, VECTOR, EVEN)
            higher = tl.maximum(top, tl.max(value, axis=1, keep_dims=True))
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            # Of nothing but -inf so far exp(-inf) = 0 stays; with 0 in its place it was NaN before scores below -88.
            total = total * tl.exp(top - safe)
            total += tl.sum(tl.where(inside, tl.exp(value - safe), 0.0), axis=1, keep_dims=True)
            top = higher
    safe = tl.where(top == float("-inf"), 0.0, top)
    share = 1.0 / tl.where(total == 0.0, float("nan"), total)  # -inf alone: 0 / 0, as in torch
    if longest > BLOCK:
        for start in range(0, longest, BLOCK):
            value, inside = _vectors(scores, start + lane, begin, end, VECTOR, EVEN)
            _put(out, start + lane, tl.exp(value - safe) * share, begin, end, inside, VECTOR, EVEN)
    else:
        _put(out, lane, power * share, begin, end, inside, VECTOR, EVEN)
    if EVEN:  # the vectors that are shared with the neighbours
        edge = tl.arange(0, 2 * VECTOR)[None, :]
        last = end // VECTOR * VECTOR
        at = tl.where(edge < VECTOR, edge, last + edge - VECTOR)
        head = (edge < VECTOR) & (begin > 0)
        tail = (edge >= VECTOR) & ((last > 0) | (begin == 0))
        ok = (head | tail) & (at >= begin) & (at < end)
        value = tl.load(scores + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(out + at, tl.exp(value - safe) * share, mask=ok)


class ModelNew(nn.Module):
    def forward(self, scores, offsets):
        scores, offsets = scores.contiguous(), offsets.contiguous()
        out = torch.empty_like(scores)
        total, rows = scores.shape[0], offsets.shape[0] - 1
        if not total or rows < 1:
            return out
        vector = 16 // scores.element_size()
        block = max(64, min(LIMIT, triton.next_power_of_2(FIT * triton.cdiv(total, rows))))
        size = max(1, ELEMENTS // block)
        warps = max(1, min(16, size * block // (32 * PER_THREAD)))
        _softmax[(triton.cdiv(rows, size),)](
            scores, offsets, out, rows, ROWS=size, BLOCK=block, VECTOR=vector, EVEN=total % vector == 0,
            num_warps=warps,
        )  # fmt: skip
        return out
