"""The head's product leaves, beside 16-bit logits, each tile's maxima and sums, so that the loss never reads the
logits; one pass makes their gradient, and two more products finish. Bound by the tensor cores: three products of the
same size.
"""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor

TUNABLES = {
    "TALL": [64, 128],
    "WIDE": [128, 256],
    "DEEP": [32, 64],
    "STAGES": [3, 4],
    "WARPS": [4, 8],
    "BAND": [4, 8, 16],
}
TALL = 128
WIDE = 256
DEEP = 64
STAGES = 3
WARPS = 8
BAND = 8
PITCH = 64


@triton.jit
def place(m, n, TALL: tl.constexpr, WIDE: tl.constexpr, BAND: tl.constexpr):
    """Row and column of a program's tile, in tiles: bands of a few rows, so that neighbours share the L2 cache."""
    program = tl.program_id(0)
    high, broad = tl.cdiv(m, TALL), tl.cdiv(n, WIDE)
    band = program // (BAND * broad)
    size = tl.minimum(high - band * BAND, BAND)
    return band * BAND + program % (BAND * broad) % size, program % (BAND * broad) // size


@triton.jit
def keep(acc, out, tops, sums, row, col, tile, m, n, pitch, STATS: tl.constexpr, WIDE: tl.constexpr):
    """Store a tile, up to the row's end in memory, and its statistics."""
    found = acc.to(out.dtype.element_ty)
    inside = (row[:, None] < m) & (col[None, :] < pitch)
    tl.store(out + row[:, None].to(tl.int64) * pitch + col[None, :], found, mask=inside)
    if STATS:  # of what is stored: a logit of 6,000 is rounded by up to 16, and its gradient is made of both
        acc = tl.where(col[None, :] < n, found.to(tl.float32), -float("inf"))
        top = tl.max(acc, axis=1)
        base = tl.where(top == -float("inf"), 0.0, top)
        to = row.to(tl.int64) * tl.cdiv(n, WIDE) + tile
        tl.store(tops + to, top, mask=row < m)
        tl.store(sums + to, tl.sum(tl.exp(acc - base[:, None]), axis=1), mask=row < m)


@triton.jit
def multiply_fetched(
    a, b, out, tops, sums, m, n, k, pitch,
    STATS: tl.constexpr, TURN_A: tl.constexpr, TURN_B: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, BAND: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Operands by descriptors, which have zeros beyond their ends; turned where they lie the other way in memory."""
    down, tile = place(m, n, TALL, WIDE, BAND)
    acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for at in tl.range(0, k, DEEP, num_stages=STAGES):
        one = tl.trans(a.load([at, down * TALL])) if TURN_A else a.load([down * TALL, at])
        other = tl.trans(b.load([tile * WIDE, at])) if TURN_B else b.load([at, tile * WIDE])
        acc = tl.dot(one, other, acc)
    row, col = down * TALL + tl.arange(0, TALL), tile * WIDE + tl.arange(0, WIDE)
    keep(acc, out, tops, sums, row, col, tile, m, n, pitch, STATS, WIDE)


@triton.jit
def multiply(
    a, b, out, tops, sums, m, n, k, pitch, am, ak, bk, bn,
    STATS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, BAND: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    down, tile = place(m, n, TALL, WIDE, BAND)
    row, col = down * TALL + tl.arange(0, TALL), tile * WIDE + tl.arange(0, WIDE)
    deep = tl.arange(0, DEEP)
    # What lies beyond the last row or column is read from the first ones, and never stored.
    from_a = a + (row % m)[:, None].to(tl.int64) * am + deep[None, :].to(tl.int64) * ak
    from_b = b + deep[:, None].to(tl.int64) * bk + (col % n)[None, :].to(tl.int64) * bn
    acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for at in tl.range(0, k, DEEP, num_stages=STAGES):
        if EVEN:
            one, other = tl.load(from_a), tl.load(from_b)
        else:
            one = tl.load(from_a, mask=deep[None, :] + at < k, other=0.0)
            other = tl.load(from_b, mask=deep[:, None] + at < k, other=0.0)
        acc = tl.dot(one, other, acc, input_precision="ieee")
        from_a += DEEP * ak
        from_b += DEEP * bk
    keep(acc, out, tops, sums, row, col, tile, m, n, pitch, STATS, WIDE)


@triton.jit
def row_losses(logits, target, tops, sums, losses, stats, pitch, tiles, TILES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    top = tl.load(tops + row * tiles + tile, mask=tile < tiles, other=-float("inf"))
    highest = tl.max(top, axis=0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    part = tl.load(sums + row * tiles + tile, mask=tile < tiles, other=0.0)
    total = tl.sum(tl.where(tile < tiles, part * tl.exp(top - base), 0.0), axis=0)
    own = tl.load(logits + row * pitch + tl.load(target + row)).to(tl.float32)
    tl.store(losses + row, tl.log(total) - (own - highest))
    tl.store(stats + 2 * row, highest)
    tl.store(stats + 2 * row + 1, 1.0 / total)


@triton.jit
def mean_of(losses, out, rows, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(0, rows, BLOCK):
        row = at + tl.arange(0, BLOCK)
        total += tl.load(losses + row, mask=row < rows, other=0.0)
    tl.store(out, tl.sum(total, axis=0) / rows)


@triton.jit
def logit_gradients(logits, target, stats, dy, dlogits, rows, pitch, chunks, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row = (rows - 1 - program // chunks).to(tl.int64)
    col = (program % chunks) * BLOCK + tl.arange(0, BLOCK)
    inside = col < pitch
    found = tl.load(logits + row * pitch + col, mask=inside, other=0.0).to(tl.float32)
    found = tl.exp(found - tl.load(stats + 2 * row)) * tl.load(stats + 2 * row + 1)
    found = tl.where(col == tl.load(target + row), found - 1.0, found) * (tl.load(dy) / rows)
    tl.store(dlogits + row * pitch + col, found.to(dlogits.dtype.element_ty), mask=inside)


def fetched(matrix):
    """The matrix as it lies in memory, rows first, if a descriptor can take it, and whether that is the other way."""
    turned = matrix.stride(1) != 1
    lying = matrix.t() if turned else matrix
    aligned = lying.stride(1) == 1 and lying.stride(0) * 2 % 16 == 0 and lying.data_ptr() % 16 == 0
    return (lying, turned) if aligned and matrix.element_size() == 2 else None


def product(a, b, out, stats=None):
    """out = a @ b for matrices of any strides; with `stats`, two tensors for each tile's maxima and sums."""
    (m, k), n = a.shape, b.shape[1]
    small = a.dtype == torch.float32
    tall, wide, deep = (64, 64, 32) if small else (TALL, WIDE, DEEP)
    tops, sums = stats if stats else (out, out)
    grid = (triton.cdiv(m, tall) * triton.cdiv(n, wide),)
    sizes = {"STATS": stats is not None, "TALL": tall, "WIDE": wide, "DEEP": deep, "BAND": BAND, "STAGES": STAGES}
    one, other = fetched(a), fetched(b)
    if one and other:
        (a, turn_a), (b, turn_b) = one, other
        multiply_fetched[grid](
            TensorDescriptor.from_tensor(a, [deep, tall] if turn_a else [tall, deep]),
            TensorDescriptor.from_tensor(b, [wide, deep] if turn_b else [deep, wide]),
            out, tops, sums, m, n, k, out.stride(0), TURN_A=turn_a, TURN_B=turn_b, **sizes, num_warps=WARPS,
        )  # fmt: skip
    else:
        multiply[grid](
            a, b, out, tops, sums, m, n, k, out.stride(0), *a.stride(), *b.stride(), EVEN=k % deep == 0, **sizes,
            num_warps=4 if small else WARPS,
        )  # fmt: skip
    return out


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target, weight):
        x, target, weight = x.contiguous(), target.contiguous(), weight.contiguous()
        rows, classes = x.shape[0], weight.shape[0]
        tiles = triton.cdiv(classes, 64 if x.dtype == torch.float32 else WIDE)
        pitch = triton.cdiv(classes, PITCH) * PITCH
        logits = torch.empty(rows, pitch, dtype=x.dtype, device=x.device)
        tops, sums = (torch.empty(rows, tiles, dtype=torch.float32, device=x.device) for _ in range(2))
        losses = torch.empty(rows, dtype=torch.float32, device=x.device)
        stats = torch.empty(rows, 2, dtype=torch.float32, device=x.device)
        out = torch.empty((), dtype=torch.float32, device=x.device)
        product(x, weight.t(), logits[:, :classes], (tops, sums))
        row_losses[(rows,)](
            logits, target, tops, sums, losses, stats, pitch, tiles, TILES=triton.next_power_of_2(tiles), num_warps=4
        )
        mean_of[(1,)](losses, out, rows, BLOCK=4096, num_warps=16)
        ctx.save_for_backward(x, target, weight, logits, stats)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, target, weight, logits, stats = ctx.saved_tensors
        rows, pitch = logits.shape
        dlogits, chunks = torch.empty_like(logits), triton.cdiv(pitch, 4096)
        logit_gradients[(rows * chunks,)](
            logits, target, stats, dy, dlogits, rows, pitch, chunks, BLOCK=4096, num_warps=8
        )
        dlogits = dlogits[:, : weight.shape[0]]
        dx = product(dlogits, weight, torch.empty_like(x))
        return dx, None, product(dlogits.t(), x, torch.empty_like(weight))


class ModelNew(nn.Module):
    def __init__(self, hidden, classes, dtype="float32"):
        super().__init__()
        self.head = nn.Linear(hidden, classes, bias=False, dtype=getattr(torch, dtype))

    def forward(self, x, target):
        return Loss.apply(x, target, self.head.weight)
