"""A matrix product whose epilogue adds the bias and applies GELU in float32; tiles are fetched by descriptors (TMA).

Programs stay and take tile after tile, so that one tile's epilogue runs beside the next one's loads. Where the inner
dimension is short, an epilogue takes half as long as its product: two smaller programs then share a multiprocessor, and
one multiplies while the other applies GELU. Few tiles are fetched by pointers, as making descriptors takes the host
longer than the product the device; rows that are not whole 16 bytes are first copied into such that are (unaligned
fetches were four times slower than cuBLAS). Bound by the tensor cores; the pass over the result that GELU costs
elsewhere is gone.
"""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor

TUNABLES = {"ROWS": [128], "COLS": [128, 256], "INNER": [64], "WARPS": [4, 8], "STAGES": [3, 4], "STAY": [0, 1]}
ROWS = 128
COLS = 256
INNER = 64
WARPS = 8
STAGES = 3
STAY = 1
GROUP = 8
SHORT = 2048


@triton.jit
def _gelu(x, WIDE: tl.constexpr):
    """For 16 bits: erfc by Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most, in half of erf's instructions."""
    if WIDE:
        found = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    else:
        t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
        tail = 0.5307027145 * t - 0.7265760135
        tail = (tail * t + 0.7107068705) * t - 0.142248368
        tail = (tail * t + 0.127414796) * t * tl.exp2(x * x * -0.7213475204444817)
        found = x * tl.where(x < 0, tail, 1.0 - tail)
    return found


@triton.jit
def _place(tile, rows, outer, ROWS: tl.constexpr, COLS: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of a tile: bands of a few rows of tiles, so that neighbours share what the L2 cache holds."""
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(outer, COLS)
    band = tile // (GROUP * across)
    height = tl.minimum(down - band * GROUP, GROUP)
    within = tile % (GROUP * across)
    return (band * GROUP + within % height) * ROWS, (within // height) * COLS


@triton.jit
def _described(
    x, weight, bias, out, rows, inner, outer, tiles,
    ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, col = _place(tile, rows, outer, ROWS, COLS, GROUP)
        total = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, tl.cdiv(inner, INNER)):
            a = x.load([row, start * INNER])
            b = weight.load([col, start * INNER])
            total = tl.dot(a, tl.trans(b), total)
        at = col + tl.arange(0, COLS)
        shift = tl.load(bias + at, mask=at < outer, other=0.0).to(tl.float32)
        out.store([row, col], _gelu(total + shift[None, :], False).to(out.dtype))


@triton.jit
def _copied(x, weight, out, rows, outer, inner, pitch, BLOCK: tl.constexpr):
    """The rows of `x`, then those of `weight`, `pitch` apart and filled up with zeros."""
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if row < rows:
        value = tl.load(x + row.to(tl.int64) * inner + col, mask=col < inner, other=0.0)
    else:
        value = tl.load(weight + (row - rows).to(tl.int64) * inner + col, mask=col < inner, other=0.0)
    tl.store(out + row.to(tl.int64) * pitch + col, value, mask=col < pitch)


@triton.jit
def _pointed(
    x, weight, bias, out, rows, inner, outer, pitch,
    ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    first_row, first_col = _place(tl.program_id(0), rows, outer, ROWS, COLS, GROUP)
    row = first_row + tl.arange(0, ROWS)
    col = first_col + tl.arange(0, COLS)
    place = tl.arange(0, INNER)
    # What lies beyond the last row or column is read from the first ones, and never stored.
    xs = x + (row % rows).to(tl.int64)[:, None] * pitch + place[None, :]
    ws = weight + (col % outer).to(tl.int64)[None, :] * pitch + place[:, None]
    total = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, inner, INNER):
        if EVEN:
            a, b = tl.load(xs + start), tl.load(ws + start)
        else:
            left = start + place < inner
            a = tl.load(xs + start, mask=left[None, :], other=0.0)
            b = tl.load(ws + start, mask=left[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32x3" if WIDE else "tf32")
    shift = tl.load(bias + col, mask=col < outer, other=0.0).to(tl.float32)
    ok = (row < rows)[:, None] & (col < outer)[None, :]
    at = (row if NEAR else row.to(tl.int64))[:, None] * outer + col[None, :]  # 64 bits would spill registers
    tl.store(out + at, _gelu(total + shift[None, :], WIDE).to(out.dtype.element_ty), mask=ok)


class ModelNew(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.linear = nn.Linear(inner, outer, dtype=getattr(torch, dtype))

    def forward(self, x):
        x, weight, bias = x.contiguous(), self.linear.weight, self.linear.bias
        shape, inner, outer = x.shape[:-1], x.shape[-1], weight.shape[0]
        out = torch.empty((*shape, outer), dtype=x.dtype, device=x.device)
        if not out.numel():
            return out
        rows = out.numel() // outer
        few = triton.cdiv(rows, 128) * triton.cdiv(outer, 128) <= 264 or inner <= SHORT
        aligned = not (inner % 8 or outer % 8 or x.data_ptr() % 16 or weight.data_ptr() % 16)
        if x.element_size() == 2 and aligned and not few and inner >= INNER and rows >= ROWS and outer >= COLS:
            return described(x, weight, bias, out, rows, inner, outer)
        return pointed(x, weight, bias, out, rows, inner, outer)


def described(x, weight, bias, out, rows, inner, outer):
    tiles = triton.cdiv(rows, ROWS) * triton.cdiv(outer, COLS)
    programs = min(tiles, 132 * (1 if ROWS * COLS > 16384 else 2)) if STAY else tiles
    _described[(programs,)](
        TensorDescriptor.from_tensor(x.view(rows, inner), [ROWS, INNER]),
        TensorDescriptor.from_tensor(weight, [COLS, INNER]),
        bias,
        TensorDescriptor.from_tensor(out.view(rows, outer), [ROWS, COLS]),
        rows, inner, outer, tiles, ROWS=ROWS, COLS=COLS, INNER=INNER, GROUP=GROUP, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


def pointed(x, weight, bias, out, rows, inner, outer):
    wide = x.element_size() > 2
    tall, broad, deep = (64, 64, 32) if wide else (min(128, max(16, triton.next_power_of_2(rows))), 128, 64)
    pitch = inner
    if not wide and inner % 8 and rows > 64:
        pitch = triton.cdiv(inner, deep) * deep
        copies = torch.empty((rows + outer, pitch), dtype=x.dtype, device=x.device)
        block = min(1024, triton.next_power_of_2(pitch))
        _copied[(rows + outer, triton.cdiv(pitch, block))](
            x, weight, copies, rows, outer, inner, pitch, BLOCK=block, num_warps=4
        )
        x, weight, inner = copies[:rows], copies[rows:], pitch
    tiles = triton.cdiv(rows, tall) * triton.cdiv(outer, broad)
    _pointed[(tiles,)](
        x, weight, bias, out, rows, inner, outer, pitch, ROWS=tall, COLS=broad, INNER=deep, GROUP=GROUP,
        EVEN=inner % deep == 0, WIDE=wide, NEAR=out.numel() < 2**31, num_warps=4 if wide else 8,
        num_stages=2 if wide else 3,
    )  # fmt: skip
    return out
