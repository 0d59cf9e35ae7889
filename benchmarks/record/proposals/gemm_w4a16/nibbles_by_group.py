"""A row's inputs are loaded whole and split into even and odd ones in registers, so that nibbles need no interleaving;
a nibble becomes a 16-bit float by one OR and one subtraction, and each group's exact sums are scaled in float32. Few
rows are split along the inputs. Many rows would make the same floats again for each tile (272 TFLOP/s at 2,048 rows):
there the weights are written once, transposed, in 16 bits, and a plain product fetches both sides by descriptors (TMA).
Bound by the packed weights' bytes for few rows, by the tensor cores for many.
"""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor

TUNABLES = {"WIDE": [64, 128, 256], "SPLITS": [2, 4, 8], "WARPS": [4, 8], "STAGES": [2, 3, 4], "TALL": [64, 128]}
WIDE = 128
SPLITS = 4
WARPS = 4
STAGES = 3
TALL = 128
FEW = 64
MANY = 256
"""More rows than this pay for a pass over the weights: it takes 0.6 ps a weight, and saves 4 fs a weight and row."""


@triton.jit
def as_float(quads, MAGIC: tl.constexpr):
    if MAGIC == 0:
        found = quads.to(tl.float32) - 8.0
    elif MAGIC == 0x4300:  # 128 and the nibble, in bfloat16
        found = ((quads.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0).to(tl.bfloat16)
    else:  # 1024 and the nibble, in float16
        found = ((quads.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0).to(tl.float16)
    return found


@triton.jit
def multiply(
    x, packed, scales, out, rows, inner, outer, groups, span,
    HALF: tl.constexpr, MAGIC: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    col = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    split = tl.program_id(2)
    half = tl.arange(0, HALF)
    # Rows beyond the last are read from the first ones, and never stored.
    from_x = x + (row % rows)[:, None].to(tl.int64) * inner + tl.arange(0, 2 * HALF)[None, :]
    acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for group in tl.range(split * span, tl.minimum((split + 1) * span, groups), num_stages=STAGES):
        byte = group * HALF + half
        two = tl.load(packed + byte[:, None].to(tl.int64) * outer + col[None, :], mask=col[None, :] < outer, other=0)
        both = tl.load(from_x + 2 * HALF * group)
        even, odd = tl.split(tl.reshape(both, (TALL, HALF, 2)))
        scale = tl.load(scales + tl.cast(group, tl.int64) * outer + col, mask=col < outer, other=0.0).to(tl.float32)
        part = tl.dot(even, as_float(two & 15, MAGIC), input_precision="ieee")
        part = tl.dot(odd, as_float(two >> 4, MAGIC), part, input_precision="ieee")
        acc += part * scale[None, :]
    inside = (row[:, None] < rows) & (col[None, :] < outer)
    at = (split.to(tl.int64) * rows + row[:, None]) * outer + col[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_up(parts, out, count, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * count + at, mask=at < count, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def unpack(packed, scales, out, halves, outer, HALF: tl.constexpr, DEEP: tl.constexpr, BLOCK: tl.constexpr):
    """Weights [outer, 2 halves], each rounded once; HALF bytes share a scale."""
    byte = tl.program_id(0) * DEEP + tl.arange(0, DEEP)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = (byte < halves)[:, None] & (col < outer)[None, :]
    two = tl.load(packed + byte[:, None].to(tl.int64) * outer + col[None, :], mask=ok, other=0)
    scale = tl.load(scales + (byte // HALF)[:, None].to(tl.int64) * outer + col[None, :], mask=ok, other=0.0)
    scale = scale.to(tl.float32)
    low = ((two & 15).to(tl.float32) - 8.0) * scale
    high = ((two >> 4).to(tl.float32) - 8.0) * scale
    both = tl.reshape(tl.join(tl.trans(low), tl.trans(high)), (BLOCK, 2 * DEEP)).to(out.dtype.element_ty)
    place = tl.program_id(0) * (2 * DEEP) + tl.arange(0, 2 * DEEP)
    at = col[:, None].to(tl.int64) * (2 * halves) + place[None, :]
    tl.store(out + at, both, mask=(col < outer)[:, None] & (place < 2 * halves)[None, :])


@triton.jit
def product(
    x, weights, out, rows, inner, outer, tiles,
    ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """out = x weights^T. Programs stay, so that a tile is stored beside the next one's loads; bands of a few rows of
    tiles share what the L2 cache holds."""
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(outer, COLS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        band = tile // (BAND * across)
        height = tl.minimum(down - band * BAND, BAND)
        within = tile % (BAND * across)
        row, col = (band * BAND + within % height) * ROWS, (within // height) * COLS
        total = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, tl.cdiv(inner, INNER)):
            a = x.load([row, start * INNER])
            b = weights.load([col, start * INNER])
            total = tl.dot(a, tl.trans(b), total)
        out.store([row, col], total.to(out.dtype))


def unpacked_once(x, packed, scales, out, half):
    """`out` filled; rows and columns begin at multiples of 16 bytes."""
    (rows, inner), outer = x.shape, out.shape[1]
    weights = torch.empty(outer, inner, dtype=x.dtype, device=x.device)
    unpack[(triton.cdiv(inner, 128), triton.cdiv(outer, 64))](
        packed, scales, weights, inner // 2, outer, HALF=half, DEEP=64, BLOCK=64, num_warps=8
    )
    tiles = triton.cdiv(rows, 128) * triton.cdiv(outer, 256)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    product[(min(tiles, processors),)](
        TensorDescriptor.from_tensor(x, [128, 64]),
        TensorDescriptor.from_tensor(weights, [256, 64]),
        TensorDescriptor.from_tensor(out, [128, 256]),
        rows, inner, outer, tiles, ROWS=128, COLS=256, INNER=64, BAND=8, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


class ModelNew(nn.Module):
    def forward(self, x, packed, scales):
        x, packed, scales = x.contiguous(), packed.contiguous(), scales.contiguous()
        (rows, inner), outer, groups = x.shape, packed.shape[1], scales.shape[0]
        group = inner // max(1, groups)
        if group * groups != inner or group < 32 or group & (group - 1) or group > 256:
            raise ValueError(f"groups of {group} inputs: made for powers of two from 32 to 256")
        magic = {torch.bfloat16: 0x4300, torch.float16: 0x6400, torch.float32: 0}[x.dtype]
        out = torch.empty(rows, outer, dtype=x.dtype, device=x.device)
        if rows > MANY and magic and outer >= 256 and outer % 8 == 0 and x.data_ptr() % 16 == 0:
            return unpacked_once(x, packed, scales, out, group // 2)
        few = rows <= FEW
        tall = max(16, triton.next_power_of_2(rows)) if few else TALL
        splits = min(SPLITS, groups) if few else 1
        span = triton.cdiv(groups, splits)
        found = torch.empty(splits, rows, outer, dtype=torch.float32, device=x.device) if splits > 1 else out
        multiply[(triton.cdiv(rows, tall), triton.cdiv(outer, WIDE), splits)](
            x, packed, scales, found, rows, inner, outer, groups, span, HALF=group // 2, MAGIC=magic,
            TALL=tall, WIDE=WIDE, STAGES=STAGES, num_warps=WARPS if few else 8,
        )  # fmt: skip
        if splits > 1:
            add_up[(triton.cdiv(out.numel(), 1024),)](found, out, out.numel(), SPLITS=splits, BLOCK=1024, num_warps=4)
        return out
