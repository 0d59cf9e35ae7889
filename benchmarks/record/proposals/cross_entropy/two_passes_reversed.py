"""Forward reads the logits once (online maximum and sum), in pieces of at most 32 KB of a row, which are merged where
the mean is made; backward reads them a second time, the last rows first, which are still in the L2 cache, and writes
the gradient. Bound by memory: 3 tensors of traffic, forward and backward.

With a program for a row of 256 KB the 1,056 at work read places in 270 MB, and memory gives 0.6 there of what it gives
neighbours; now they are in 35 MB. Not yet measured in pieces.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [2048, 4096, 8192], "WARPS": [4, 8, 16], "CHUNK": [2048, 4096, 8192], "CHUNK_WARPS": [4, 8]}
CONSTRAINTS = ["BLOCK >= 128 * WARPS", "CHUNK >= 256 * CHUNK_WARPS"]
BLOCK = 4096
WARPS = 8
CHUNK = 4096
CHUNK_WARPS = 8
LONGEST = 32 << 10
"""Bytes of a piece."""


@triton.jit
def row_losses(
    logits, target, losses, tops, sums, levels, classes, span, pieces, ignored, smoothing,
    SMOOTHED: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row, low = (program // pieces).to(tl.int64), program % pieces * span
    high = tl.minimum(low + span, classes)
    start = logits + row * classes
    top = -float("inf")
    total = 0.0
    level = 0.0
    for at in range(low, high, BLOCK):
        col = at + tl.arange(0, BLOCK)
        value = tl.load(start + col, mask=col < high, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(value, axis=0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.sum(tl.exp(value - base), axis=0)
        top = higher
        if SMOOTHED:
            level += tl.sum(tl.where(col < high, value, 0.0), axis=0)
    wanted = tl.load(target + row)
    counts = wanted != ignored
    own = tl.load(start + tl.where(counts, wanted, 0)).to(tl.float32)
    tl.store(tops + program, top)
    if WHOLE:
        tl.store(losses + row, tl.where(counts, loss_of(own, top, total, level, classes, smoothing, SMOOTHED), 0.0))
        tl.store(sums + row, 1.0 / total)
    else:
        tl.store(sums + program, total)
        if SMOOTHED:
            tl.store(levels + program, level)
        if low == 0:
            tl.store(losses + row, own)


@triton.jit
def loss_of(own, top, total, level, classes, smoothing, SMOOTHED: tl.constexpr):
    rest = tl.log(total)
    loss = rest - (own - top)
    if SMOOTHED:
        loss = (1.0 - smoothing) * loss + smoothing * (rest - (level / classes - top))
    return loss


@triton.jit
def mean_of(losses, target, out, share, rows, ignored, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    count = tl.zeros((BLOCK,), dtype=tl.int32)
    for at in range(0, rows, BLOCK):
        row = at + tl.arange(0, BLOCK)
        total += tl.load(losses + row, mask=row < rows, other=0.0)
        count += (tl.load(target + row, mask=row < rows, other=ignored) != ignored).to(tl.int32)
    each = 1.0 / tl.sum(count, axis=0).to(tl.float32)
    tl.store(out, (tl.sum(total, axis=0) * each).to(out.dtype.element_ty))
    tl.store(share, each)


@triton.jit
def mean_of_pieces(
    owns, target, part_tops, part_sums, part_levels, tops, sums, out, share, rows, classes, pieces, ignored, smoothing,
    SMOOTHED: tl.constexpr, ROWS: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Maxima and sums of all rows from those of their pieces, and the mean loss."""
    total = tl.zeros((ROWS,), dtype=tl.float32)
    count = tl.zeros((ROWS,), dtype=tl.int32)
    piece = tl.arange(0, PIECES)
    for at in range(0, rows, ROWS):
        row = at + tl.arange(0, ROWS)
        place = row[:, None].to(tl.int64) * pieces + piece[None, :]
        inside = (row[:, None] < rows) & (piece[None, :] < pieces)
        part = tl.load(part_tops + place, mask=inside, other=-float("inf"))
        top = tl.max(part, axis=1)
        base = tl.where(top == -float("inf"), 0.0, top)
        mass = tl.load(part_sums + place, mask=inside, other=0.0) * tl.exp(part - base[:, None])
        mass = tl.where(row < rows, tl.sum(mass, axis=1), 1.0)
        level = top
        if SMOOTHED:
            level = tl.sum(tl.load(part_levels + place, mask=inside, other=0.0), axis=1)
        counts = tl.load(target + row, mask=row < rows, other=ignored) != ignored
        own = tl.load(owns + row, mask=row < rows, other=0.0)
        total += tl.where(counts, loss_of(own, top, mass, level, classes, smoothing, SMOOTHED), 0.0)
        count += counts.to(tl.int32)
        tl.store(tops + row, top, mask=row < rows)
        tl.store(sums + row, 1.0 / mass, mask=row < rows)
    each = 1.0 / tl.sum(count, axis=0).to(tl.float32)
    tl.store(out, (tl.sum(total, axis=0) * each).to(out.dtype.element_ty))
    tl.store(share, each)


@triton.jit
def gradients(
    logits, target, tops, sums, share, dy, dx, rows, classes, ignored, smoothing, chunks, BLOCK: tl.constexpr
):
    program = tl.program_id(0)
    row = (rows - 1 - program // chunks).to(tl.int64)
    col = (program % chunks) * BLOCK + tl.arange(0, BLOCK)
    inside = col < classes
    wanted = tl.load(target + row)
    found = tl.load(logits + row * classes + col, mask=inside, other=0.0).to(tl.float32)
    found = tl.exp(found - tl.load(tops + row)) * tl.load(sums + row) - smoothing / classes
    found = tl.where(col == wanted, found - (1.0 - smoothing), found)
    found = found * (tl.load(dy).to(tl.float32) * tl.load(share))
    found = tl.where(wanted == ignored, 0.0, found)
    tl.store(dx + row * classes + col, found.to(dx.dtype.element_ty), mask=inside)


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, ignored, smoothing):
        logits, target = logits.contiguous(), target.contiguous()
        rows, classes = logits.shape
        losses, tops, sums = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
        share = torch.empty(1, dtype=torch.float32, device=logits.device)
        out = torch.empty((), dtype=logits.dtype, device=logits.device)
        block = max(16, min(BLOCK, triton.next_power_of_2(classes)))
        wanted = max(1, triton.cdiv(classes * logits.element_size(), LONGEST))
        span = max(1, triton.cdiv(triton.cdiv(classes, wanted), block)) * block
        pieces = max(1, triton.cdiv(classes, span))
        parts = torch.empty(3, rows * pieces, dtype=torch.float32, device=logits.device) if pieces > 1 else ()
        found = parts if pieces > 1 else (tops, sums, sums)
        row_losses[(rows * pieces,)](
            logits, target, losses, *found, classes, span, pieces, ignored, smoothing,
            SMOOTHED=smoothing > 0, WHOLE=pieces == 1, BLOCK=block, num_warps=max(1, min(WARPS, block // 128)),
        )  # fmt: skip
        if pieces == 1:
            mean_of[(1,)](losses, target, out, share, rows, ignored, BLOCK=4096, num_warps=16)
        else:
            padded = triton.next_power_of_2(pieces)
            mean_of_pieces[(1,)](
                losses, target, *found, tops, sums, out, share, rows, classes, pieces, ignored, smoothing,
                SMOOTHED=smoothing > 0, ROWS=max(1, 8192 // padded), PIECES=padded, num_warps=16,
            )  # fmt: skip
        ctx.save_for_backward(logits, target, tops, sums, share)
        ctx.rule = ignored, smoothing
        return out

    @staticmethod
    def backward(ctx, dy):
        logits, target, tops, sums, share = ctx.saved_tensors
        rows, classes = logits.shape
        dx = torch.empty_like(logits)
        block = max(16, min(CHUNK, triton.next_power_of_2(classes)))
        chunks = triton.cdiv(classes, block)
        gradients[(rows * chunks,)](
            logits, target, tops, sums, share, dy, dx, rows, classes, *ctx.rule, chunks,
            BLOCK=block, num_warps=max(1, min(CHUNK_WARPS, block // 128)),
        )  # fmt: skip
        return dx, None, None, None


class ModelNew(nn.Module):
    def __init__(self, smoothing=0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        return Loss.apply(logits, target, -100, self.smoothing)
