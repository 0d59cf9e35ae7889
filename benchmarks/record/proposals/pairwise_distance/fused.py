"""One matrix product on tensor cores whose epilogue makes distances of it; the rows' squares come from a tiny launch.

16-bit rows are multiplied as they are (their products are exact in float32), float32 ones in three TF32 parts. Bound by
the tensor cores for long rows, by the writes of the result for short ones.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"LEFT": [128], "RIGHT": [128, 256], "INNER": [64, 128], "WARPS": [4, 8], "STAGES": [3, 4]}
LEFT = 128
RIGHT = 128
INNER = 64
WARPS = 8
STAGES = 3
GROUP = 8


@triton.jit
def _squares(x, y, out, left, right, dim, ROWS: tl.constexpr, DIM: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    of_x = row < left
    of_y = (row >= left) & (row < left + right)
    base = tl.where(of_x, row, row - left).to(tl.int64)[:, None] * dim
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, dim, DIM):
        col = start + tl.arange(0, DIM)[None, :]
        a = tl.load(x + base + col, mask=of_x[:, None] & (col < dim), other=0.0).to(tl.float32)
        b = tl.load(y + base + col, mask=of_y[:, None] & (col < dim), other=0.0).to(tl.float32)
        total += tl.sum(a * a + b * b, axis=1)
    tl.store(out + row, total, mask=of_x | of_y)


@triton.jit
def _distances(
    x, y, squares, out, left, right, dim,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(left, LEFT), tl.cdiv(right, RIGHT)
    band = tl.program_id(0) // (GROUP * across)
    height = tl.minimum(down - band * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    row = (band * GROUP + within % height) * LEFT + tl.arange(0, LEFT)
    col = (within // height) * RIGHT + tl.arange(0, RIGHT)
    inner = tl.arange(0, INNER)
    xs = x + row.to(tl.int64)[:, None] * dim + inner[None, :]
    ys = y + col.to(tl.int64)[None, :] * dim + inner[:, None]
    total = tl.zeros([LEFT, RIGHT], tl.float32)
    for start in range(0, dim, INNER):
        a = tl.load(xs + start, mask=(row < left)[:, None] & (start + inner < dim)[None, :], other=0.0)
        b = tl.load(ys + start, mask=(col < right)[None, :] & (start + inner < dim)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    xx = tl.load(squares + row, mask=row < left, other=0.0)
    yy = tl.load(squares + left + col, mask=col < right, other=0.0)
    square = xx[:, None] + yy[None, :] - 2.0 * total
    result = tl.sqrt(tl.where(square < 0.0, 0.0, square))  # NaN stays NaN
    ok = (row < left)[:, None] & (col < right)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * right + col[None, :], result, mask=ok)


class ModelNew(nn.Module):
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        left, right, dim = x.shape[0], y.shape[0], x.shape[1]
        out = torch.empty((left, right), dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
        if not out.numel():
            return out
        squares = torch.empty(left + right, dtype=torch.float32, device=x.device)
        width = min(256, max(16, triton.next_power_of_2(max(dim, 1))))
        rows = 2048 // width
        _squares[(triton.cdiv(left + right, rows),)](x, y, squares, left, right, dim, ROWS=rows, DIM=width, num_warps=4)
        wide = x.dtype is torch.float32
        tall, broad = (64, 64) if left * right < 1 << 21 else (LEFT, 128 if wide else RIGHT)
        inner = max(16, min(32 if wide else INNER, triton.next_power_of_2(max(dim, 1))))
        grid = (triton.cdiv(left, tall) * triton.cdiv(right, broad),)
        _distances[grid](
            x, y, squares, out, left, right, dim, LEFT=tall, RIGHT=broad, INNER=inner, GROUP=GROUP,
            PRECISION="tf32x3" if wide else "tf32",
            num_warps=4 if tall == 64 else WARPS, num_stages=2 if wide else STAGES,
        )  # fmt: skip
        return out
