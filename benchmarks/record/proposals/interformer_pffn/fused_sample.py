"""The samples' weight matrices come from one product; a program then takes a sample through product, GELU and LayerNorm
without a pass between. Backwards one kernel computes that again and gives dX, the gradient of the sample's matrix, and
LayerNorm's parts; two products with what came of it finish.

Bound by memory: the matrices of all samples, written once and read once forwards, and three times more backwards.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"DEPTH": [32, 64], "STAGES": [2, 3, 4], "PROGRAMS": [264, 528], "WARPS": [4, 8], "SPLITS": [8, 16]}
DEPTH = 64
STAGES = 3
PROGRAMS = 528
WARPS = 4
SPLITS = 16


@triton.jit
def product(
    a, b, bias, raw, out, sums, M, N, K, a_m, a_k, b_k, b_n, factor,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BIAS: tl.constexpr, GELU: tl.constexpr, SLOPE: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """out = a b, in float32; what lies transposed is said by strides. `sums`: of a's rows. `raw`: with GELU, where the
    values before it go; with SLOPE, where its derivative is taken. Programs along the second axis share the inner
    dimension, and each writes a part."""
    rows = tl.cdiv(M, BM)
    column = tl.program_id(0) // rows
    m = (tl.program_id(0) % rows * BM + tl.arange(0, BM)).to(tl.int64)
    n = (column * BN + tl.arange(0, BN)).to(tl.int64)
    span = tl.cdiv(tl.cdiv(K, BK), tl.num_programs(1)) * BK
    first = tl.program_id(1) * span
    end = tl.minimum(first + span, K)
    acc = tl.zeros((BM, BN), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for start in range(first, end, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * a_m + k[None, :] * a_k, mask=(m < M)[:, None] & (k < end)[None, :], other=0.0)
        y = tl.load(b + k[:, None] * b_k + n[None, :] * b_n, mask=(k < end)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        if SUMS:
            total += tl.sum(x.to(tl.float32), 1)
    if BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    acc *= factor
    real = (m < M)[:, None] & (n < N)[None, :]
    at = m[:, None] * N + n[None, :]
    if GELU:
        tl.store(raw + at, acc.to(raw.dtype.element_ty), mask=real)
        acc *= 0.5 * (1.0 + tl.erf(acc * 0.7071067811865476))
    if SLOPE:
        h = tl.load(raw + at, mask=real, other=0.0).to(tl.float32)
        acc *= 0.5 * (1.0 + tl.erf(h * 0.7071067811865476)) + h * 0.3989422804014327 * tl.exp(-0.5 * h * h)
    part = tl.program_id(1).to(tl.int64) * M * N
    tl.store(out + part + at, acc.to(out.dtype.element_ty), mask=real)
    if SUMS:
        tl.store(sums + m, total.to(sums.dtype.element_ty), mask=(m < M) & (column == 0))


@triton.jit
def add_parts(parts, out, count, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((PARTS, BLOCK), tl.float32)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS)
        real = (part < count)[:, None] & (i < size)[None, :]
        total += tl.load(parts + part.to(tl.int64)[:, None] * size + i[None, :], mask=real, other=0.0)
    tl.store(out + i, tl.sum(total, 0).to(out.dtype.element_ty), mask=i < size)


@triton.jit
def normalised(h, inside, D, eps):
    """GELU of h, centred over its columns, and one over its deviation."""
    g = tl.where(inside, 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476)), 0.0)
    g = tl.where(inside, g - (tl.sum(g, 1) / D)[:, None], 0.0)
    return g, 1.0 / tl.sqrt(tl.sum(g * g, 1) / D + eps)


@triton.jit
def feed_forward(x, weights, scale, shift, out, T, D, eps, BT: tl.constexpr, BD: tl.constexpr):
    sample = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.arange(0, BD)
    inside = (t < T)[:, None] & (d < D)[None, :]
    at = (sample * T + t)[:, None] * D + d[None, :]
    w = tl.load(
        weights + (sample * D + d)[:, None] * D + d[None, :], mask=(d < D)[:, None] & (d < D)[None, :], other=0.0
    )
    h = tl.dot(tl.load(x + at, mask=inside, other=0.0), w, input_precision="ieee")
    g, rstd = normalised(h, inside, D, eps)
    gamma = tl.load(scale + d, mask=d < D, other=0.0).to(tl.float32)
    beta = tl.load(shift + d, mask=d < D, other=0.0).to(tl.float32)
    y = g * rstd[:, None] * gamma[None, :] + beta[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def feed_backward(
    x, weights, scale, dout, dx, dweights, parts, samples, T, D, eps, factor, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    d = tl.arange(0, BD)
    square = (d < D)[:, None] & (d < D)[None, :]
    gamma = tl.load(scale + d, mask=d < D, other=0.0).to(tl.float32)
    dgamma = tl.zeros((BD,), tl.float32)
    dbeta = tl.zeros((BD,), tl.float32)
    zero = tl.zeros((), tl.int64)
    for each in range(tl.program_id(0), samples, tl.num_programs(0)):
        sample = zero + each
        matrix = sample * D * D + d[:, None] * D + d[None, :]
        w = tl.load(weights + matrix, mask=square, other=0.0)
        dw = tl.zeros((BD, BD), tl.float32)
        for start in range(0, T, BT):
            t = start + tl.arange(0, BT)
            inside = (t < T)[:, None] & (d < D)[None, :]
            at = (sample * T + t)[:, None] * D + d[None, :]
            v = tl.load(x + at, mask=inside, other=0.0)
            dy = tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
            h = tl.dot(v, w, input_precision="ieee")
            g, rstd = normalised(h, inside, D, eps)
            g *= rstd[:, None]
            dgamma += tl.sum(dy * g, 0)
            dbeta += tl.sum(dy, 0)
            dg = dy * gamma[None, :]
            mean, along = tl.sum(dg, 1) / D, tl.sum(dg * g, 1) / D
            dg = (dg - mean[:, None] - g * along[:, None]) * rstd[:, None]
            slope = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476)) + h * 0.3989422804014327 * tl.exp(-0.5 * h * h)
            dh = tl.where(inside, dg * slope, 0.0).to(w.dtype)
            result = tl.dot(dh, tl.trans(w), input_precision="ieee")
            tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)
            dw = tl.dot(tl.trans(v), dh, dw, input_precision="ieee")
        tl.store(dweights + matrix, (dw * factor).to(dweights.dtype.element_ty), mask=square)
    part = parts + tl.program_id(0).to(tl.int64) * 2 * D + d
    tl.store(part, dgamma, mask=d < D)
    tl.store(part + D, dbeta, mask=d < D)


def multiply(a, b, out, bias=None, raw=None, sums=None, gelu=False, factor=1.0, splits=1, tile=(128, 64)):
    """out = a @ b for matrices of any strides; with several splits `out` is [splits, rows, columns] in float32."""
    (rows, inner), columns = a.shape, b.shape[1]
    if a.element_size() == 4:
        tile = (32, 32)
    bm, bn = (min(most, max(16, triton.next_power_of_2(n))) for most, n in zip(tile, (rows, columns), strict=True))
    product[(triton.cdiv(rows, bm) * triton.cdiv(columns, bn), splits)](
        a, b, bias, raw, out, sums, rows, columns, inner, *a.stride(), *b.stride(), factor,
        BM=bm, BN=bn, BK=min(DEPTH, max(16, triton.next_power_of_2(inner))), BIAS=bias is not None, GELU=gelu,
        SLOPE=raw is not None and not gelu, SUMS=sums is not None,
        num_warps=8 if bm * bn > 8192 else 4, num_stages=STAGES,
    )  # fmt: skip


def summed(parts, like):
    """The sum of float32 parts [count, ...] as a tensor of `like`'s type."""
    out = torch.empty(parts.shape[1:], dtype=like.dtype, device=like.device)
    size = out.numel()
    add_parts[(triton.cdiv(size, 64),)](parts, out, parts.shape[0], size, PARTS=32, BLOCK=64)
    return out


class PersonalisedLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, summary, weight, bias, scale, shift, eps):
        batch, tokens, dim = x.shape
        weights = torch.empty((batch, dim * dim), dtype=x.dtype, device=x.device)
        out = torch.empty_like(x)
        if batch:
            multiply(summary, weight.t(), weights, bias=bias, factor=dim**-0.5, tile=(128, 128))
        if out.numel():
            rows = min(64, max(16, triton.next_power_of_2(tokens)))
            feed_forward[(triton.cdiv(tokens, rows), batch)](
                x, weights, scale, shift, out, tokens, dim, eps,
                BT=rows, BD=max(16, triton.next_power_of_2(dim)), num_warps=WARPS,
            )  # fmt: skip
        ctx.save_for_backward(x, summary, weight, scale, weights)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx, dout):
        x, summary, weight, scale, weights = ctx.saved_tensors
        batch, tokens, dim = x.shape
        dx, dweights = torch.empty_like(x), torch.empty_like(weights)
        programs = max(1, min(batch, PROGRAMS))
        parts = torch.empty((programs, 2, dim), dtype=torch.float32, device=x.device)
        feed_backward[(programs,)](
            x, weights, scale, dout.contiguous(), dx, dweights, parts, batch, tokens, dim, ctx.eps, dim**-0.5,
            BT=min(64, max(16, triton.next_power_of_2(tokens))), BD=max(16, triton.next_power_of_2(dim)), num_warps=8,
        )  # fmt: skip
        norms = summed(parts, scale)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight[:, 0])
        multiply(dweights.t(), summary, dweight, sums=dbias)
        # Few rows and columns, and a long inner dimension: shared between programs.
        splits = max(1, min(SPLITS, dim * dim // 256))
        shares = torch.empty((splits, *summary.shape), dtype=torch.float32, device=x.device)
        multiply(dweights, weight, shares, splits=splits)
        return dx, summed(shares, summary), dweight, dbias, norms[0], norms[1], None


class ModelNew(nn.Module):
    def __init__(self, dim, summary, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.dim = dim
        self.weights = nn.Linear(summary, dim * dim, dtype=kind)
        self.norm = nn.LayerNorm(dim, dtype=kind)

    def forward(self, x, summary):
        weight, bias = self.weights.weight, self.weights.bias
        if x.dim() != 3 or x.shape[2] != self.dim or summary.shape != (x.shape[0], weight.shape[1]) or self.dim > 256:
            raise ValueError("tokens [batch, tokens, dim] and a summary of each sample are needed, dim at most 256")
        if len({x.dtype, summary.dtype, weight.dtype}) > 1 or x.dtype == torch.float64:
            raise ValueError("one type for all is needed, and not float64")
        return PersonalisedLayer.apply(
            x.contiguous(), summary.contiguous(), weight, bias, self.norm.weight, self.norm.bias, self.norm.eps
        )
