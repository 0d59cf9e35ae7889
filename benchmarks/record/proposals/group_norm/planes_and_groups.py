"""A group of up to 2^18 elements is one program's, forwards and backwards: it reads its group twice, the second time
from the caches, and a small launch adds up the channels' sums. Three launches for a step: with five, small images took
as long as the host needs for launches (700 us for what the device does in 130).

Larger groups are split. Forward: moments of pieces of each group, then one pass that merges them and normalises.
Backward: two sums for each plane, coefficients for each group and channel, one elementwise pass; passes go to and fro
so that the L2 cache serves half of the second reads. Bound by memory: 5 to 8 tensors of traffic.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"PIECE": [4096, 8192, 16384], "TILE": [1024, 2048, 4096], "WARPS": [4, 8]}
PIECE = 8192
TILE = 2048
WARPS = 4
MOST_PIECES = 128
WHOLE = 2**18


@triton.jit
def whole_groups(
    x, weight, bias, out, stats, plane, channels, each, eps,
    BLOCK: tl.constexpr, PLANES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0)
    size = each * plane
    start = group.to(tl.int64) * size
    mean, spread, seen = 0.0, 0.0, 0.0
    for at in range(0, size, BLOCK):
        place = at + tl.arange(0, BLOCK)
        inside = place < size
        value = tl.load(x + start + place, mask=inside, other=0.0).to(tl.float32)
        count = tl.minimum(size - at, BLOCK).to(tl.float32)
        level = tl.sum(value, axis=0) / count
        off = tl.where(inside, value - level, 0.0)
        gap, total = level - mean, seen + count
        spread += tl.sum(off * off, axis=0) + gap * gap * (seen * count / total)
        mean += gap * (count / total)
        seen = total
    scale = 1.0 / tl.sqrt(spread / size + eps)
    tl.store(stats + 2 * group, mean)
    tl.store(stats + 2 * group + 1, scale)
    first = group * each % channels
    for begin in range(0, each, PLANES):
        number = begin + tl.arange(0, PLANES)
        here = number < each
        w = tl.load(weight + first + number, mask=here, other=0.0).to(tl.float32) * scale
        b = tl.load(bias + first + number, mask=here, other=0.0).to(tl.float32)
        for at in range(0, plane, WIDE):
            place = at + tl.arange(0, WIDE)
            inside = here[:, None] & (place[None, :] < plane)
            to = start + (number[:, None] * plane + place[None, :])
            value = tl.load(x + to, mask=inside, other=0.0).to(tl.float32) - mean
            tl.store(out + to, (value * w[:, None] + b[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def whole_gradients(
    x, dy, weight, stats, sums, dx, plane, channels, each, PLANES: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    group = tl.program_id(0)
    size = each * plane
    start = group.to(tl.int64) * size
    first = group * each % channels
    mean, scale = tl.load(stats + 2 * group), tl.load(stats + 2 * group + 1)
    from_along, from_level = 0.0, 0.0
    for begin in range(0, each, PLANES):
        number = begin + tl.arange(0, PLANES)
        here = number < each
        along = tl.zeros((PLANES, WIDE), dtype=tl.float32)
        level = tl.zeros((PLANES, WIDE), dtype=tl.float32)
        for at in range(0, plane, WIDE):
            place = at + tl.arange(0, WIDE)
            inside = here[:, None] & (place[None, :] < plane)
            to = start + (number[:, None] * plane + place[None, :])
            g = tl.load(dy + to, mask=inside, other=0.0).to(tl.float32)
            value = tl.load(x + to, mask=inside, other=0.0).to(tl.float32)
            along += g * tl.where(inside, value - mean, 0.0)
            level += g
        alongs, levels = tl.sum(along, axis=1), tl.sum(level, axis=1)
        to_sums = sums + 2 * (group * each + number)
        tl.store(to_sums, alongs * scale, mask=here)
        tl.store(to_sums + 1, levels, mask=here)
        w = tl.load(weight + first + number, mask=here, other=0.0).to(tl.float32)
        from_along += tl.sum(alongs * w, axis=0)
        from_level += tl.sum(levels * w, axis=0)
    from_along *= scale * scale / size
    from_level /= size
    for begin in range(0, each, PLANES):
        number = begin + tl.arange(0, PLANES)
        here = number < each
        w = tl.load(weight + first + number, mask=here, other=0.0).to(tl.float32)
        for at in range(0, plane, WIDE):
            place = at + tl.arange(0, WIDE)
            inside = here[:, None] & (place[None, :] < plane)
            to = start + (number[:, None] * plane + place[None, :])
            g = tl.load(dy + to, mask=inside, other=0.0).to(tl.float32) * w[:, None]
            value = tl.load(x + to, mask=inside, other=0.0).to(tl.float32) - mean
            tl.store(dx + to, (scale * (g - from_level - value * from_along)).to(dx.dtype.element_ty), mask=inside)


@triton.jit
def over_images(sums, dweight, dbias, batch, channels, IMAGES: tl.constexpr, BLOCK: tl.constexpr):
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    along = tl.zeros((IMAGES, BLOCK), dtype=tl.float32)
    level = tl.zeros((IMAGES, BLOCK), dtype=tl.float32)
    for start in range(0, batch, IMAGES):
        image = start + tl.arange(0, IMAGES)
        inside = (image < batch)[:, None] & (channel < channels)[None, :]
        at = sums + 2 * (image[:, None] * channels + channel[None, :])
        along += tl.load(at, mask=inside, other=0.0)
        level += tl.load(at + 1, mask=inside, other=0.0)
    tl.store(dweight + channel, tl.sum(along, axis=0).to(dweight.dtype.element_ty), mask=channel < channels)
    tl.store(dbias + channel, tl.sum(level, axis=0).to(dbias.dtype.element_ty), mask=channel < channels)


@triton.jit
def moments(x, means, spreads, size, pieces, span, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    piece = program % pieces
    start = x + (program // pieces).to(tl.int64) * size
    low, high = piece * span, tl.minimum((piece + 1) * span, size)
    mean, spread, seen = 0.0, 0.0, 0.0
    for at in range(low, high, BLOCK):
        place = at + tl.arange(0, BLOCK)
        inside = place < high
        value = tl.load(start + place, mask=inside, other=0.0).to(tl.float32)
        count = tl.minimum(high - at, BLOCK).to(tl.float32)
        level = tl.sum(value, axis=0) / count
        off = tl.where(inside, value - level, 0.0)
        gap, total = level - mean, seen + count
        spread += tl.sum(off * off, axis=0) + gap * gap * (seen * count / total)
        mean += gap * (count / total)
        seen = total
    tl.store(means + program, mean)
    tl.store(spreads + program, spread)


@triton.jit
def merged(means, spreads, group, here, size, pieces, span, eps, PIECES: tl.constexpr):
    piece = tl.arange(0, PIECES)
    usable = here[:, None] & (piece[None, :] < pieces)
    at = group[:, None] * pieces + piece[None, :]
    count = tl.where(usable, tl.minimum(span, tl.maximum(size - piece * span, 0))[None, :].to(tl.float32), 0.0)
    level = tl.load(means + at, mask=usable, other=0.0)
    mean = tl.sum(level * count, axis=1) / size
    off = level - mean[:, None]
    spread = tl.sum(tl.load(spreads + at, mask=usable, other=0.0) + off * off * count, axis=1) / size
    return mean, 1.0 / tl.sqrt(spread + eps)


@triton.jit
def normalise(
    x, weight, bias, means, spreads, out, stats, planes, plane, channels, each, size, pieces, span, eps, chunks,
    PIECES: tl.constexpr, PLANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    number = program // chunks * PLANES + tl.arange(0, PLANES)
    here = number < planes
    channel, group = number % channels, number // each
    mean, scale = merged(means, spreads, group, here, size, pieces, span, eps, PIECES)
    tl.store(stats + 2 * group, mean, mask=here & (channel % each == 0) & (program % chunks == 0))
    tl.store(stats + 2 * group + 1, scale, mask=here & (channel % each == 0) & (program % chunks == 0))
    w = tl.load(weight + channel, mask=here, other=0.0).to(tl.float32) * scale
    b = tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
    place = program % chunks * BLOCK + tl.arange(0, BLOCK)
    inside = here[:, None] & (place[None, :] < plane)
    at = number[:, None].to(tl.int64) * plane + place[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean[:, None]
    tl.store(out + at, (value * w[:, None] + b[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def plane_sums(x, dy, stats, sums, planes, plane, each, pieces, span, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    piece = program % pieces
    number = program // pieces * PLANES + tl.arange(0, PLANES)
    here = number < planes
    mean = tl.load(stats + 2 * (number // each), mask=here, other=0.0)
    start = number[:, None].to(tl.int64) * plane
    along = tl.zeros((PLANES, BLOCK), dtype=tl.float32)
    level = tl.zeros((PLANES, BLOCK), dtype=tl.float32)
    for at in range(piece * span, tl.minimum((piece + 1) * span, plane), BLOCK):
        place = at + tl.arange(0, BLOCK)
        inside = here[:, None] & (place[None, :] < tl.minimum((piece + 1) * span, plane))
        g = tl.load(dy + start + place[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + start + place[None, :], mask=inside, other=0.0).to(tl.float32)
        along += g * tl.where(inside, value - mean[:, None], 0.0)
        level += g
    to = sums + 2 * (number * pieces + piece)
    tl.store(to, tl.sum(along, axis=1), mask=here)
    tl.store(to + 1, tl.sum(level, axis=1), mask=here)


@triton.jit
def coefficients(
    sums, weight, stats, wanted, dweight, dbias, groups, batch, channels, each, size, pieces,
    PIECES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    piece = tl.arange(0, PIECES)
    if program < groups:  # what a group's channels add up to
        first, second = 0.0, 0.0
        for start in range(0, each, BLOCK):
            channel = start + tl.arange(0, BLOCK)
            usable = (channel[:, None] < each) & (piece[None, :] < pieces)
            at = sums + 2 * ((program * each + channel)[:, None] * pieces + piece[None, :])
            w = tl.load(weight + program * each % channels + channel, mask=channel < each, other=0.0).to(tl.float32)
            first += tl.sum(tl.sum(tl.load(at, mask=usable, other=0.0), axis=1) * w, axis=0)
            second += tl.sum(tl.sum(tl.load(at + 1, mask=usable, other=0.0), axis=1) * w, axis=0)
        scale = tl.load(stats + 2 * program + 1)
        tl.store(wanted + 2 * program, first * scale * scale / size)
        tl.store(wanted + 2 * program + 1, second / size)
    else:  # what a channel's images add up to
        channel = program - groups
        first, second = 0.0, 0.0
        for start in range(0, batch, BLOCK):
            image = start + tl.arange(0, BLOCK)
            usable = (image[:, None] < batch) & (piece[None, :] < pieces)
            number = image * channels + channel
            at = sums + 2 * (number[:, None] * pieces + piece[None, :])
            scale = tl.load(stats + 2 * (number // each) + 1, mask=image < batch, other=0.0)
            first += tl.sum(tl.sum(tl.load(at, mask=usable, other=0.0), axis=1) * scale, axis=0)
            second += tl.sum(tl.sum(tl.load(at + 1, mask=usable, other=0.0), axis=1), axis=0)
        tl.store(dweight + channel, first.to(dweight.dtype.element_ty))
        tl.store(dbias + channel, second.to(dbias.dtype.element_ty))


@triton.jit
def gradients(
    x, dy, weight, stats, wanted, dx, planes, plane, channels, each, chunks,
    PLANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    number = program // chunks * PLANES + tl.arange(0, PLANES)
    here = number < planes
    group = number // each
    mean = tl.load(stats + 2 * group, mask=here, other=0.0)
    scale = tl.load(stats + 2 * group + 1, mask=here, other=0.0)
    along = tl.load(wanted + 2 * group, mask=here, other=0.0)
    level = tl.load(wanted + 2 * group + 1, mask=here, other=0.0)
    w = tl.load(weight + number % channels, mask=here, other=0.0).to(tl.float32)
    place = program % chunks * BLOCK + tl.arange(0, BLOCK)
    inside = here[:, None] & (place[None, :] < plane)
    at = number[:, None].to(tl.int64) * plane + place[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean[:, None]
    g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32) * w[:, None]
    found = scale[:, None] * (g - level[:, None] - value * along[:, None])
    tl.store(dx + at, found.to(dx.dtype.element_ty), mask=inside)


def tiles_of(plane):
    """(planes of a tile, its elements, tiles along a plane)."""
    block = max(16, min(TILE, triton.next_power_of_2(plane)))
    return max(1, min(32, TILE // block)), block, triton.cdiv(plane, block)


def tile_of_a_group(plane, each):
    """(planes, elements along each) of what a program takes at a time of its group: 16 elements a thread."""
    wide = max(16, min(2 * TILE, triton.next_power_of_2(plane)))
    return max(1, min(triton.next_power_of_2(each), 2 * TILE // wide)), wide


def pieces_of(size, block):
    """(pieces, elements of each): whole blocks, and not too many pieces to merge."""
    span = max(PIECE, triton.cdiv(size, MOST_PIECES))
    span = triton.cdiv(min(span, size), block) * block
    return triton.cdiv(size, span), span


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps):
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        batch, channels = x.shape[:2]
        each = channels // groups
        plane = x.numel() // (batch * channels)
        ctx.groups = groups
        if each * plane <= WHOLE:
            out = torch.empty_like(x)
            stats = torch.empty(batch * groups, 2, dtype=torch.float32, device=x.device)
            planes, wide = tile_of_a_group(plane, each)
            whole_groups[(batch * groups,)](
                x, weight, bias, out, stats, plane, channels, each, eps,
                BLOCK=max(16, min(PIECE, triton.next_power_of_2(each * plane))), PLANES=planes, WIDE=wide, num_warps=8,
            )  # fmt: skip
            ctx.save_for_backward(x, weight, bias, stats)
            return out
        size, block = each * plane, min(PIECE, max(16, triton.next_power_of_2(each * plane)))
        pieces, span = pieces_of(size, block)
        means, spreads = (torch.empty(batch * groups * pieces, dtype=torch.float32, device=x.device) for _ in range(2))
        stats = torch.empty(batch * groups, 2, dtype=torch.float32, device=x.device)
        out = torch.empty_like(x)
        moments[(batch * groups * pieces,)](x, means, spreads, size, pieces, span, BLOCK=block, num_warps=8)
        tall, wide, chunks = tiles_of(plane)
        normalise[(triton.cdiv(batch * channels, tall) * chunks,)](
            x, weight, bias, means, spreads, out, stats, batch * channels, plane, channels, each, size, pieces, span,
            eps, chunks, PIECES=triton.next_power_of_2(pieces), PLANES=tall, BLOCK=wide, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, stats)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, stats = ctx.saved_tensors
        dy, (batch, channels), groups = dy.contiguous(), x.shape[:2], ctx.groups
        each, planes = channels // groups, batch * channels
        plane = x.numel() // planes
        if each * plane <= WHOLE:
            sums = torch.empty(planes, 2, dtype=torch.float32, device=x.device)
            dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
            tall, wide = tile_of_a_group(plane, each)
            whole_gradients[(batch * groups,)](
                x, dy, weight, stats, sums, dx, plane, channels, each, PLANES=tall, WIDE=wide, num_warps=8
            )
            over_images[(triton.cdiv(channels, 32),)](
                sums, dweight, dbias, batch, channels, IMAGES=16, BLOCK=32, num_warps=4
            )
            return dx, dweight, dbias, None, None
        tall, wide, chunks = tiles_of(plane)
        pieces, span = pieces_of(plane, wide)
        sums = torch.empty(planes * pieces, 2, dtype=torch.float32, device=x.device)
        wanted, dx = torch.empty_like(stats), torch.empty_like(x)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        plane_sums[(triton.cdiv(planes, tall) * pieces,)](
            x, dy, stats, sums, planes, plane, each, pieces, span, PLANES=tall, BLOCK=wide, num_warps=WARPS
        )
        coefficients[(batch * groups + channels,)](
            sums, weight, stats, wanted, dweight, dbias, batch * groups, batch, channels, each, each * plane, pieces,
            PIECES=triton.next_power_of_2(pieces), BLOCK=16, num_warps=1,
        )  # fmt: skip
        gradients[(triton.cdiv(planes, tall) * chunks,)](
            x, dy, weight, stats, wanted, dx, planes, plane, channels, each, chunks,
            PLANES=tall, BLOCK=wide, num_warps=WARPS,
        )  # fmt: skip
        return dx, dweight, dbias, None, None


class ModelNew(nn.Module):
    def __init__(self, channels, groups=32, dtype="float32"):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, dtype=getattr(torch, dtype))

    def forward(self, x):
        norm = self.norm
        return Normed.apply(x, norm.weight, norm.bias, norm.num_groups, norm.eps)
