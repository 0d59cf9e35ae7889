"""An implicit matrix product whose rows are the pixels of pooling windows: ReLU and maximum happen in its epilogue.

The convolution's own result is never written. Few input channels, and small problems, for which one launch takes the
host longer than the device needs, are gathered as they lie; more are brought to channels last first (and the filters to
taps first), so that a tap is a block of contiguous rows. Bound by the tensor cores.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"ROWS": [128, 256], "COLS": [64, 128], "INNER": [32, 64], "WARPS": [4, 8], "STAGES": [3, 4]}
ROWS = 128
COLS = 128
INNER = 64
WARPS = 8
STAGES = 3
GATHERED = 1 << 21
"""So many elements of all pixels' windows, 512 of each at most, are gathered sooner than two more kernels launched."""


@triton.jit
def _larger(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _turn(x, out, rows, cols, pitch, strips, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Matrices of `rows` x `cols` to `cols` x `pitch`, with zeros beyond `rows`."""
    image = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(0) // strips) * ROWS + tl.arange(0, ROWS)
    col = (tl.program_id(0) % strips) * COLS + tl.arange(0, COLS)
    at = image * rows * cols + row[:, None] * cols + col[None, :]
    tile = tl.load(x + at, mask=(row < rows)[:, None] & (col < cols)[None, :], other=0.0)
    at = image * pitch * cols + col[:, None] * pitch + row[None, :]
    tl.store(out + at, tl.trans(tile), mask=(row < pitch)[None, :] & (col < cols)[:, None])


@triton.jit
def _taps(weight, out, inner, outer, pitch, broad, BLOCK: tl.constexpr):
    """Filters [outer, inner, 9] to [9, pitch, broad], with zeros beyond `inner` and `outer`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap, row, col = at // (pitch * broad), at // broad % pitch, at % broad
    ok = (tap < 9) & (row < inner) & (col < outer)
    value = tl.load(weight + (col * inner + row) * 9 + tap, mask=ok, other=0.0)
    tl.store(out + at, value, mask=tap < 9)


@triton.jit
def _pixel(pooled, pooled_height, pooled_width, ROWS: tl.constexpr):
    """Image, row and column of each row of a tile: four rows in turn are one window."""
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    window = line // 4
    image = window // (pooled_height * pooled_width)
    y = window // pooled_width % pooled_height * 2 + line % 4 // 2
    left = window % pooled_width * 2 + line % 2
    return image, y, left, window < pooled


@triton.jit
def _finish(
    total, bias, out, col, pooled, outer, windows, LAST: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):  # fmt: skip
    total += tl.load(bias + col, mask=col < outer, other=0.0).to(tl.float32)[None, :]
    total = tl.where(total < 0.0, 0.0, total)
    upper, lower = tl.split(tl.permute(tl.reshape(total, [ROWS // 4, 2, 2, COLS]), [0, 3, 2, 1]))
    best_left, best_right = tl.split(_larger(upper, lower))
    best = _larger(best_left, best_right)
    window = tl.program_id(0) * (ROWS // 4) + tl.arange(0, ROWS // 4)
    base = (window // windows).to(tl.int64) * (windows * outer)
    ok = (window < pooled)[:, None] & (col < outer)[None, :]
    if LAST:
        at = (base + window % windows * outer)[:, None] + col[None, :]
    else:
        at = (base + window % windows)[:, None] + col.to(tl.int64)[None, :] * windows
    tl.store(out + at, best, mask=ok)


@triton.jit
def _few(
    x, weight, bias, out, pooled, inner, outer, height, width, LAST: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, TAPS: tl.constexpr, CHUNKS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    image, y, left, ok = _pixel(pooled, height // 2, width // 2, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    first = image.to(tl.int64)[:, None] * (inner * height * width)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for chunk in tl.static_range(CHUNKS):
        tap = chunk * TAPS + tl.arange(0, TAPS)
        channel = tap // 9
        above = y[:, None] + (tap % 9 // 3 - 1)[None, :]
        beside = left[:, None] + (tap % 3 - 1)[None, :]
        inside = ok[:, None] & (channel < inner)[None, :]
        inside = inside & (above >= 0) & (above < height) & (beside >= 0) & (beside < width)
        if LAST:
            at = channel[None, :] + (above * width + beside) * inner
        else:
            at = (channel[None, :] * height + above) * width + beside
        a = tl.load(x + first + at, mask=inside, other=0.0)
        b = tl.load(
            weight + col[None, :] * (inner * 9) + tap[:, None],
            mask=(col < outer)[None, :] & (channel < inner)[:, None], other=0.0,
        )  # fmt: skip
        total = tl.dot(a, b, total, input_precision=PRECISION)
    _finish(total, bias, out, col, pooled, outer, (height // 2) * (width // 2), LAST, ROWS, COLS)


@triton.jit
def _many(
    x, weight, bias, out, pooled, pitch, broad, outer, height, width, LAST: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    image, y, left, ok = _pixel(pooled, height // 2, width // 2, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    place = tl.arange(0, INNER)
    pixel = (image.to(tl.int64) * height + y) * width + left
    xs = x + pixel[:, None] * pitch + place[None, :]
    ws = weight + place[:, None] * broad + col[None, :]
    steps = tl.cdiv(pitch, INNER)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for step in range(0, 9 * steps):
        tap = step // steps
        start = step % steps * INNER
        down, right = tap // 3 - 1, tap % 3 - 1
        inside = ok & (y + down >= 0) & (y + down < height) & (left + right >= 0) & (left + right < width)
        some = start + place < pitch
        a = tl.load(xs + ((down * width + right) * pitch + start), mask=inside[:, None] & some[None, :], other=0.0)
        b = tl.load(ws + (tap * pitch + start) * broad, mask=some[:, None] & (col < broad)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    _finish(total, bias, out, col, pooled, outer, (height // 2) * (width // 2), LAST, ROWS, COLS)


class ModelNew(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, padding=1, dtype=getattr(torch, dtype))

    def forward(self, x):
        weight, bias = self.conv.weight.contiguous(), self.conv.bias  # a model may have it in channels_last
        batch, inner, height, width = x.shape
        outer = weight.shape[0]
        last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        x = x if last else x.contiguous()
        high, wide = height // 2, width // 2
        out = torch.empty(
            (batch, outer, high, wide), dtype=x.dtype, device=x.device,
            memory_format=torch.channels_last if last else torch.contiguous_format,
        )  # fmt: skip
        if not out.numel():
            return out
        pooled = batch * high * wide
        single = x.dtype is torch.float32
        precision = "tf32x3" if single else "tf32"
        cols = max(16, min(COLS, triton.next_power_of_2(outer)))
        rows = 64 if single or pooled * 4 < 132 * ROWS else ROWS
        warps = WARPS if rows * cols >= 16384 else 4
        if inner * 9 <= 128 or (inner * 9 <= 512 and pooled * 4 * inner * 9 <= GATHERED):
            taps = min(128, max(16, triton.next_power_of_2(inner * 9)))
            chunks = triton.cdiv(inner * 9, taps)
            if chunks > 1:  # small: tiles for more programs, and of no more elements at a time
                rows, cols, taps, warps = 32, min(32, cols), 32 if single else 64, 4
                chunks = triton.cdiv(inner * 9, taps)
            _few[triton.cdiv(pooled * 4, rows), triton.cdiv(outer, cols)](
                x, weight, bias, out, pooled, inner, outer, height, width,
                LAST=last, ROWS=rows, COLS=cols, TAPS=taps, CHUNKS=chunks, PRECISION=precision, num_warps=warps,
            )  # fmt: skip
            return out
        pitch, broad = inner, triton.cdiv(outer, 16) * 16  # rows of filters and pixels begin at multiples of 16
        if not last:
            pitch = triton.cdiv(inner, 16) * 16
            turned = torch.empty(batch * height * width * pitch, dtype=x.dtype, device=x.device)
            strips = triton.cdiv(height * width, 64)
            _turn[(triton.cdiv(pitch, 64) * strips, batch)](
                x, turned, inner, height * width, pitch, strips, ROWS=64, COLS=64, num_warps=4
            )
            x = turned
        filters = torch.empty(9 * pitch * broad, dtype=weight.dtype, device=x.device)
        _taps[(triton.cdiv(filters.numel(), 1024),)](
            weight, filters, inner, outer, pitch, broad, BLOCK=1024, num_warps=4
        )
        deep = min(32 if single else INNER, max(16, triton.next_power_of_2(inner)))
        _many[triton.cdiv(pooled * 4, rows), triton.cdiv(outer, cols)](
            x, filters, bias, out, pooled, pitch, broad, outer, height, width, LAST=last,
            ROWS=rows, COLS=cols, INNER=deep, PRECISION=precision, num_warps=warps, num_stages=2 if single else STAGES,
        )  # fmt: skip
        return out
