"""A row of pixels times a banded matrix of the filter's row is its convolution: 16-bit planes go through tensor cores.

Each row is loaded in vectors once a filter row, not once a tap. Channels last, float32 and wide images add tap by tap,
in vectors of channels or of pixels. Bound by memory for 3x3, by the cache and the tensor cores for 7x7.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {
    "ROWS": [64, 128, 256],
    "WARPS": [4, 8],
    "PIXELS": [32, 64, 128],
    "CHANNELS": [32, 64],
    "LAST_WARPS": [4, 8],
}
ROWS = 128
WARPS = 8
PIXELS = 64
CHANNELS = 32
LAST_WARPS = 4


@triton.jit
def _tap_by_tap(
    x, weight, out, line, shift, channel, target, batch, channels, height, width, new_height, new_width, pad, kernel
):  # fmt: skip
    """One row of the result; rarely wanted, so it is written to take few registers."""
    image = line // new_height
    y = line % new_height
    plane = image.to(tl.int64) * channels + channel
    total = tl.zeros([target.shape[0]], tl.float32) + shift
    for down in range(kernel):
        above = y + down - pad
        inside = (image < batch) & (above >= 0) & (above < height)
        for right in range(kernel):
            beside = target + right - pad
            ok = inside & (beside >= 0) & (beside < width)
            value = tl.load(x + (plane * height + above) * width + beside, mask=ok, other=0.0).to(tl.float32)
            total += value * tl.load(weight + (channel * kernel + down) * kernel + right).to(tl.float32)
    tl.store(out + (plane * new_height + y) * new_width + target, total, mask=(image < batch) & (target < new_width))


@triton.jit
def _bands(
    x, weight, bias, out, batch, channels, height, new_height, pad, kernel,
    width: tl.constexpr, new_width: tl.constexpr, ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    # Widths are constants, so that 56 is known to be whole vectors of 8.
    channel = tl.program_id(1)
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    image = line // new_height
    y = line % new_height
    source = tl.arange(0, IN)
    target = tl.program_id(2) * OUT + tl.arange(0, OUT)
    plane = image.to(tl.int64) * channels + channel
    shift = tl.load(bias + channel).to(tl.float32)
    total = tl.zeros([ROWS, OUT], tl.float32) + shift
    tap = source[:, None] - target[None, :] + pad
    wild = tl.zeros([ROWS], tl.int32)
    for down in range(0, kernel):  # no constant, or it would be unrolled, and spill
        above = y + down - pad
        ok = ((image < batch) & (above >= 0) & (above < height))[:, None] & (source < width)[None, :]
        value = tl.load(x + (plane * height + above)[:, None] * width + source[None, :], mask=ok, other=0.0)
        band = tl.load(weight + (channel * kernel + down) * kernel + tap, mask=(tap >= 0) & (tap < kernel), other=0.0)
        total = tl.dot(value, band, total)
        wild += tl.sum((tl.abs(value.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1, axis=1)
    ok = (image < batch)[:, None] & (target < new_width)[None, :]
    at = (plane * new_height + y)[:, None] * new_width + target[None, :]
    if tl.max(wild, axis=0) > 0:
        # Zero times infinity would reach pixels outside of the window: such rows are added tap by tap.
        for step in range(0, ROWS):
            _tap_by_tap(
                x, weight, out, tl.program_id(0) * ROWS + step, shift, channel, target,
                batch, channels, height, width, new_height, new_width, pad, kernel,
            )  # fmt: skip
    else:
        tl.store(out + at, total, mask=ok)


@triton.jit
def _plane(
    x, weight, bias, out, channels, height, width, new_height, new_width, pad,
    KERNEL: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0).to(tl.int64)
    channel = (plane % channels).to(tl.int32)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    y = pixel // new_width
    left = pixel % new_width
    total = tl.zeros([PIXELS], tl.float32) + tl.load(bias + channel).to(tl.float32)
    for down in range(KERNEL):
        above = y + down - pad
        inside = (above >= 0) & (above < height) & (y < new_height)
        for right in tl.static_range(KERNEL):
            beside = left + right - pad
            at = plane * height * width + above * width + beside
            value = tl.load(x + at, mask=inside & (beside >= 0) & (beside < width), other=0.0)
            total += value.to(tl.float32) * tl.load(weight + (channel * KERNEL + down) * KERNEL + right).to(tl.float32)
    tl.store(out + plane * new_height * new_width + pixel, total, mask=y < new_height)


@triton.jit
def _last(
    x, weight, bias, out, pixels, channels, height, width, new_height, new_width, pad,
    KERNEL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    image = (pixel // (new_height * new_width)).to(tl.int64)
    y = pixel // new_width % new_height
    left = pixel % new_width
    some = channel < channels
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    total += tl.load(bias + channel, mask=some, other=0.0).to(tl.float32)[None, :]
    for down in range(KERNEL):
        above = y + down - pad
        inside = (pixel < pixels) & (above >= 0) & (above < height)
        for right in tl.static_range(KERNEL):
            beside = left + right - pad
            ok = (inside & (beside >= 0) & (beside < width))[:, None] & some[None, :]
            at = ((image * height + above) * width + beside)[:, None] * channels + channel[None, :]
            value = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
            factor = tl.load(weight + (channel * KERNEL + down) * KERNEL + right, mask=some, other=0.0)
            total += value * factor.to(tl.float32)[None, :]
    at = pixel.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out + at, total, mask=(pixel < pixels)[:, None] & some[None, :])


class ModelNew(nn.Module):
    def __init__(self, channels, kernel, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv2d(
            channels, channels, kernel, padding=kernel // 2, groups=channels, dtype=getattr(torch, dtype)
        )

    def forward(self, x):
        weight, bias = self.conv.weight, self.conv.bias
        kernel = weight.shape[2]
        pad = kernel // 2
        batch, channels, height, width = x.shape
        new_height, new_width = height + 2 * pad - kernel + 1, width + 2 * pad - kernel + 1
        last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        x = x if last else x.contiguous()
        out = torch.empty(
            (batch, channels, new_height, new_width), dtype=x.dtype, device=x.device,
            memory_format=torch.channels_last if last else torch.contiguous_format,
        )  # fmt: skip
        if not out.numel():
            return out
        sizes = (channels, height, width, new_height, new_width, pad)
        if last:
            pixels = batch * new_height * new_width
            wide = min(CHANNELS, triton.next_power_of_2(channels))
            grid = (triton.cdiv(pixels, PIXELS), triton.cdiv(channels, wide))
            _last[grid](
                x, weight, bias, out, pixels, *sizes, KERNEL=kernel, PIXELS=PIXELS, CHANNELS=wide, num_warps=LAST_WARPS
            )
        elif x.dtype is torch.float32 or width > 128 or channels > 65535:
            block = min(1024, triton.next_power_of_2(new_height * new_width))
            grid = (batch * channels, triton.cdiv(new_height * new_width, block))
            _plane[grid](x, weight, bias, out, *sizes, KERNEL=kernel, PIXELS=block, num_warps=max(1, block // 256))
        else:
            taken = max(16, triton.next_power_of_2(width))
            made = min(64, max(16, triton.next_power_of_2(new_width)))
            grid = (triton.cdiv(batch * new_height, ROWS), channels, triton.cdiv(new_width, made))
            _bands[grid](
                x, weight, bias, out, batch, channels, height, new_height, pad, kernel,
                width=width, new_width=new_width, ROWS=ROWS, IN=taken, OUT=made, num_warps=WARPS,
            )  # fmt: skip
        return out
