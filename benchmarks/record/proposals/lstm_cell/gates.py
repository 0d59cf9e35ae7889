"""Both products and the cell in one launch: a tile holds all four gates of its hidden units, which meet in registers.

Bound by the tensor cores for large batches and by reading the weights once for small ones. Where rows are not whole 16
bytes and the batch is large, inputs and weights are first copied into rows that are: unaligned fetches took 1.4 times
what cuBLAS takes (H200).
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"ROWS": [64, 128], "UNITS": [16, 32, 64], "INNER": [64, 128], "WARPS": [4, 8], "STAGES": [3, 4]}
ROWS = 128
UNITS = 32
INNER = 64
WARPS = 8
STAGES = 4


@triton.jit
def _product(
    total, x, weight, row, source, batch, inner, outer, pitch,
    INNER: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, INNER)
    xs = x + row.to(tl.int64)[:, None] * pitch + place[None, :]
    ws = weight + source.to(tl.int64)[None, :] * pitch + place[:, None]
    for start in range(0, inner, INNER):
        left, right = (row < batch)[:, None], (source < outer)[None, :]
        if not EVEN:
            left, right = left & (start + place < inner)[None, :], right & (start + place < inner)[:, None]
        a = tl.load(xs + start, mask=left, other=0.0)
        b = tl.load(ws + start, mask=right, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    small = x * x
    series = x * (1.0 - small * (1.0 / 3.0 - small * (2.0 / 15.0)))
    far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * tl.abs(x)))
    return tl.where(tl.abs(x) < 0.05, series, tl.where(x < 0.0, -far, far))


@triton.jit
def _copied(x, h, weight_ih, weight_hh, out, batch, inner, hidden, split, pitch, BLOCK: tl.constexpr):
    """Rows of x and h side by side, then those of the weights, the gates of a unit in turn; zeros fill them up."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    left, right = at < inner, (at >= split) & (at - split < hidden)
    if row < batch:
        value = tl.load(x + row.to(tl.int64) * inner + at, mask=left, other=0.0)
        value += tl.load(h + row.to(tl.int64) * hidden + at - split, mask=right, other=0.0)
    else:
        source = ((row - batch) % 4 * hidden + (row - batch) // 4).to(tl.int64)
        value = tl.load(weight_ih + source * inner + at, mask=left, other=0.0)
        value += tl.load(weight_hh + source * hidden + at - split, mask=right, other=0.0)
    tl.store(out + row.to(tl.int64) * pitch + at, value, mask=at < pitch)


@triton.jit
def _cell(
    x, h, c, weight_ih, weight_hh, bias, new_h, new_c, batch, inner, hidden, depth, x_pitch, h_pitch,
    ROWS: tl.constexpr, UNITS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    # Neighbouring columns of the tile are the gates of one unit: they are split off by two reshapes.
    col = tl.arange(0, 4 * UNITS)
    unit = tl.program_id(0) * UNITS + col // 4
    source = tl.where(unit < hidden, (col % 4) * hidden + unit, 4 * hidden)
    lies = unit * 4 + col % 4 if COPIED else source
    total = tl.zeros([ROWS, 4 * UNITS], tl.float32)
    total = _product(total, x, weight_ih, row, lies, batch, inner, 4 * hidden, x_pitch, INNER, PRECISION, COPIED)
    total = _product(total, h, weight_hh, row, lies, batch, depth, 4 * hidden, h_pitch, INNER, PRECISION, COPIED)
    total += tl.load(bias + source, mask=source < 4 * hidden, other=0.0).to(tl.float32)[None, :]
    even, odd = tl.split(tl.reshape(total, [ROWS, 2 * UNITS, 2]))
    let_in, cell = tl.split(tl.reshape(even, [ROWS, UNITS, 2]))
    forget, let_out = tl.split(tl.reshape(odd, [ROWS, UNITS, 2]))
    col = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    at = row.to(tl.int64)[:, None] * hidden + col[None, :]
    ok = (row < batch)[:, None] & (col < hidden)[None, :]
    old = tl.load(c + at, mask=ok, other=0.0).to(tl.float32)
    new = _sigmoid(forget) * old + _sigmoid(let_in) * _tanh(cell)
    tl.store(new_c + at, new, mask=ok)
    tl.store(new_h + at, _sigmoid(let_out) * _tanh(new), mask=ok)


class ModelNew(nn.Module):
    def __init__(self, inner, hidden, dtype="float32"):
        super().__init__()
        kind, bound = getattr(torch, dtype), hidden**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inner, dtype=kind).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden, dtype=kind).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * hidden, dtype=kind).uniform_(-bound, bound))

    def forward(self, x, h, c):
        x, h, c = x.contiguous(), h.contiguous(), c.contiguous()
        weight_ih, weight_hh = self.weight_ih.contiguous(), self.weight_hh.contiguous()
        new_h, new_c = torch.empty_like(h), torch.empty_like(c)
        if not new_h.numel():
            return new_h, new_c
        batch, hidden = h.shape
        wide = h.dtype is torch.float32
        rows = max(16, min(64 if wide else ROWS, triton.next_power_of_2(batch)))
        units = UNITS
        while units > 8 and triton.cdiv(batch, rows) * triton.cdiv(hidden, units) < 132:
            units //= 2
        inner = 32 if wide else INNER * (2 if rows < 64 else 1)
        warps = WARPS if rows * units >= 4096 else 4
        width = x.shape[1]
        sources, depths = (x, h, weight_ih, weight_hh), (width, hidden, width, hidden)
        copied = not wide and batch > 64 and (width % 8 or hidden % 8)
        if copied:
            depth_x, depth_h = triton.cdiv(width, inner) * inner, triton.cdiv(hidden, inner) * inner
            pitch = depth_x + depth_h
            rooms = torch.empty((batch + 4 * hidden, pitch), dtype=h.dtype, device=h.device)
            _copied[(batch + 4 * hidden, triton.cdiv(pitch, 1024))](
                *sources, rooms, batch, width, hidden, depth_x, pitch, BLOCK=1024, num_warps=4
            )
            sources = (rooms, rooms[:, depth_x:], rooms[batch:], rooms[batch:, depth_x:])
            depths = (depth_x, depth_h, pitch, pitch)
        depth_x, depth_h, x_pitch, h_pitch = depths
        _cell[(triton.cdiv(hidden, units), triton.cdiv(batch, rows))](
            sources[0], sources[1], c, sources[2], sources[3], self.bias, new_h, new_c, batch, depth_x, hidden, depth_h,
            x_pitch, h_pitch, ROWS=rows, UNITS=units, INNER=inner, PRECISION="tf32x3" if wide else "tf32",
            COPIED=bool(copied), num_warps=warps, num_stages=3 if wide else STAGES,
        )  # fmt: skip
        return new_h, new_c
