"""Forward reads the logits once (online maximum and sum); backward reads them a second time, the last rows first,
which are still in the L2 cache, and writes the gradient. Bound by memory: 3 tensors of traffic, forward and backward.
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


@triton.jit
def row_losses(
    logits, target, losses, tops, sums, classes, ignored, smoothing, SMOOTHED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * classes
    top = -float("inf")
    total = 0.0
    level = 0.0
    for at in range(0, classes, BLOCK):
        col = at + tl.arange(0, BLOCK)
        value = tl.load(start + col, mask=col < classes, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(value, axis=0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.sum(tl.exp(value - base), axis=0)
        top = higher
        if SMOOTHED:
            level += tl.sum(tl.where(col < classes, value, 0.0), axis=0)
    wanted = tl.load(target + row)
    counts = wanted != ignored
    own = tl.load(start + tl.where(counts, wanted, 0)).to(tl.float32)
    rest = tl.log(total)
    loss = rest - (own - top)
    if SMOOTHED:
        loss = (1.0 - smoothing) * loss + smoothing * (rest - (level / classes - top))
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    tl.store(tops + row, top)
    tl.store(sums + row, 1.0 / total)


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
        row_losses[(rows,)](
            logits, target, losses, tops, sums, classes, ignored, smoothing,
            SMOOTHED=smoothing > 0, BLOCK=block, num_warps=max(1, min(WARPS, block // 128)),
        )  # fmt: skip
        mean_of[(1,)](losses, target, out, share, rows, ignored, BLOCK=4096, num_warps=16)
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
