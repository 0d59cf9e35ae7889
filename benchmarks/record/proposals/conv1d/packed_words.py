"""Implicit GEMM on the layout that torch has, channels first: no transposed copies, no pass for the bias. Rows are read
as 32-bit words, each of which serves a result at an even and one at an odd place, so that no tap needs 16-bit loads.

Bound by memory (each element once in, once out), beside tensor cores that do 4/3 of the work at 96 channels.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"ROWS": [64, 128, 256], "WARPS": [4, 8], "K": [16, 32, 64], "STAGES": [1, 2, 3]}
ROWS = 128
WARPS = 8
K = 32
STAGES = 2


@triton.jit
def pack(weight, packed, CO, CI, COP, CIP, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Weights as [tap, output channel, input channel], padded with zeros."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap, co, ci = i // (COP * CIP), i // CIP % COP, i % CIP
    real = (co < CO) & (ci < CI) & (tap < TAPS)
    w = tl.load(weight + (co * CI + ci) * TAPS + tap, mask=real, other=0.0)
    tl.store(packed + i, w, mask=tap < TAPS)


@triton.jit
def evens(words, kind: tl.constexpr):
    """The lower 16 bits of 32-bit words as elements: those of even places."""
    return words.to(tl.int16).to(kind, bitcast=True)


@triton.jit
def odds(words, kind: tl.constexpr):
    """The upper 16 bits."""
    return (words >> 16).to(tl.int16).to(kind, bitcast=True)


@triton.jit
def convolve_words(
    x, packed, bias, out, total, H, LW, CI, CO, COP, CIP,
    KH: tl.constexpr, PAIRS: tl.constexpr, BCO: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Kernels three wide, rows of even length. A word is two neighbours: results at even places are made of the word's
    elements and the odd one before, results at odd places of the word's and the even one after. So no operand of a
    product is put together of two words, and both results make one word again. Places are counted in 32 bits, which
    spares registers (156 of them instead of 200 at 8 warps)."""
    q = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    co = tl.program_id(1) * BCO + tl.arange(0, BCO)
    image = H * LW
    b, rest = q // image, q % image
    h, w = rest // LW, rest % LW
    inside = q < total
    even = tl.zeros((BCO, PAIRS), tl.float32)
    odd = tl.zeros((BCO, PAIRS), tl.float32)
    steps = CIP // K
    for step in range(0, KH * steps):
        kh, ci = step // steps, step % steps * K + tl.arange(0, K)
        up = h + kh - KH // 2
        at = x + ((b * CI * image + up * LW + w)[None, :] + ci[:, None] * image)
        real = (ci < CI)[:, None] & (inside & (up >= 0) & (up < H))[None, :]
        here = tl.load(at, mask=real, other=0)
        before = odds(tl.load(at - 1, mask=real & (w > 0)[None, :], other=0), KIND)
        after = evens(tl.load(at + 1, mask=real & (w < LW - 1)[None, :], other=0), KIND)
        first, second = evens(here, KIND), odds(here, KIND)
        weight = packed + (3 * kh * COP + co)[:, None] * CIP + ci[None, :]
        left, middle, right = tl.load(weight), tl.load(weight + COP * CIP), tl.load(weight + 2 * COP * CIP)
        even = tl.dot(left, before, even)
        odd = tl.dot(left, first, odd)
        even = tl.dot(middle, first, even)
        odd = tl.dot(middle, second, odd)
        even = tl.dot(right, second, even)
        odd = tl.dot(right, after, odd)
    shift = tl.load(bias + co, mask=co < CO, other=0.0).to(tl.float32)[:, None]
    low = (even + shift).to(KIND).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    high = (odd + shift).to(KIND).to(tl.int16, bitcast=True).to(tl.int32) << 16
    at = out + ((b * CO * image + rest)[None, :] + co[:, None] * image)
    tl.store(at, low | high, mask=(co < CO)[:, None] & inside[None, :])


@triton.jit
def convolve(
    x, packed, bias, out, total, H, W, CI, CO, COP, CIP,
    KH: tl.constexpr, KW: tl.constexpr, ROWS: tl.constexpr, BCO: tl.constexpr, K: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Any kernel, any length and type, one element at a time."""
    q = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    co = tl.program_id(1) * BCO + tl.arange(0, BCO)
    image = H * W
    b, rest = q // image, q % image  # divisions in 32 bits: in 64 they take a hundred instructions
    if not NEAR:
        b = b.to(tl.int64)  # of smaller tensors places are counted in 32 bits, which spares registers
    h, w = rest // W, rest % W
    inside = q < total
    acc = tl.zeros((BCO, ROWS), tl.float32)
    for step in range(0, CIP // K * KH * KW):  # one loop: taps unrolled side by side spilled their registers
        ci, tap = step // (KH * KW) * K + tl.arange(0, K), step % (KH * KW)
        up, along = h + tap // KW - KH // 2, w + tap % KW - KW // 2
        real = inside & (up >= 0) & (up < H) & (along >= 0) & (along < W)
        at = x + ((b * CI * image + up * W + along)[None, :] + ci[:, None] * image)
        values = tl.load(at, mask=(ci < CI)[:, None] & real[None, :], other=0.0)
        weight = tl.load(packed + (tap * COP + co)[:, None] * CIP + ci[None, :])
        acc = tl.dot(weight, values, acc, input_precision="ieee")
    acc += tl.load(bias + co, mask=co < CO, other=0.0).to(tl.float32)[:, None]
    at = out + ((b * CO * image + rest)[None, :] + co[:, None] * image)
    tl.store(at, acc.to(out.dtype.element_ty), mask=(co < CO)[:, None] & inside[None, :])


def convolution(x, weight, bias, kh, kw):
    """`x`: [batch, channels, height, width], contiguous; odd kernels that keep the size."""
    batch, inner, height, width = x.shape
    outer = weight.shape[0]
    if batch * height * width >= 2**31 - 1024:
        raise ValueError("at most 2^31 pixels")
    out = torch.empty((batch, outer, height, width), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    k = min(K, max(16, triton.next_power_of_2(inner)))
    block = 128 if outer > 64 else max(16, triton.next_power_of_2(outer))
    outer_padded, inner_padded = triton.cdiv(outer, block) * block, triton.cdiv(inner, k) * k
    taps = kh * kw
    packed = torch.empty((taps, outer_padded, inner_padded), dtype=x.dtype, device=x.device)
    pack[(triton.cdiv(packed.numel(), 1024),)](
        weight, packed, outer, inner, outer_padded, inner_padded, TAPS=taps, BLOCK=1024
    )
    few = max(x.numel(), out.numel()) < 2**31
    words = few and kw == 3 and width % 2 == 0 and x.element_size() == 2 and x.data_ptr() % 4 == 0
    rows = ROWS if x.element_size() == 2 else 64
    grid = (triton.cdiv(batch * height * width, rows), outer_padded // block)
    # Two programs of 8 warps share a multiprocessor if their threads have 128 registers each.
    tall = block > 64
    kept = {"num_warps": WARPS, "maxnreg": 128 if rows <= 16 * WARPS else None} if tall else {"num_warps": 4}
    if words:
        kind = tl.float16 if x.dtype == torch.float16 else tl.bfloat16
        convolve_words[grid](
            x.view(torch.int32), packed, bias, out.view(torch.int32), batch * height * width // 2, height, width // 2,
            inner, outer, outer_padded, inner_padded, KH=kh, PAIRS=rows // 2, BCO=block, K=k, KIND=kind,
            num_stages=STAGES, **kept,
        )  # fmt: skip
    else:
        convolve[grid](
            x, packed, bias, out, batch * height * width, height, width, inner, outer, outer_padded, inner_padded,
            KH=kh, KW=kw, ROWS=rows, BCO=block, K=k, NEAR=few, num_warps=WARPS, num_stages=2,
        )  # fmt: skip
    return out


class ModelNew(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel_size=3, padding=1, dtype=getattr(torch, dtype))

    def forward(self, x):
        weight = self.conv.weight
        if x.dim() != 3 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
            raise ValueError(f"a {weight.dtype} tensor [batch, {weight.shape[1]}, length] is needed")
        return convolution(x.contiguous().unsqueeze(2), weight.contiguous(), self.conv.bias, 1, 3).squeeze(2)
