"""One kernel takes a sample from X to LayerNorm's output without a pass between; the MLP's products have bias, GELU,
its slope and the bias gradients in their epilogues; backwards one kernel computes the small products again and gives
dX, and parts of the gradients of Y and of LayerNorm.

Bound by memory for X (read twice, dX written once), and by launches for small batches.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"DEPTH": [32, 64], "STAGES": [2, 3, 4], "PROGRAMS": [264, 528], "WARPS": [2, 4, 8], "TALL": [64, 128]}
DEPTH = 64
STAGES = 3
PROGRAMS = 264
WARPS = 4
TALL = 128


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
def widened(v):
    """fp16 as float32, other types as they are: gradients of 1e-5 behind a deviation of 3e5 lose their bits in fp16,
    and rows in which two products cancel were 1.4 times their size off. The products are small beside the bytes."""
    if v.dtype == tl.float16:
        v = v.to(tl.float32)
    return v


@triton.jit
def interactions(v, y, inside, count, eps, EXACT: tl.constexpr):
    """X^T Y, and X (X^T Y) centred over all of the sample, with one over its deviation."""
    z = tl.dot(tl.trans(v), y, input_precision=EXACT).to(v.dtype)
    f = tl.dot(v, z, input_precision=EXACT)
    f = tl.where(inside, f - tl.sum(tl.where(inside, f, 0.0)) / count, 0.0)
    return z, f, 1.0 / tl.sqrt(tl.sum(f * f) / count + eps)


@triton.jit
def factorise(
    x, y, scale, shift, out, F, D, R, eps,
    BF: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    f, d, r = tl.arange(0, BF), tl.arange(0, BD), tl.arange(0, BR)
    inside = (f < F)[:, None] & (r < R)[None, :]
    at = f[:, None] * R + r[None, :]
    known = (f < F)[:, None] & (d < D)[None, :]
    v = widened(tl.load(x + sample * F * D + f[:, None] * D + d[None, :], mask=known, other=0.0))
    _z, normed, rstd = interactions(v, widened(tl.load(y + at, mask=inside, other=0.0)), inside, F * R, eps, EXACT)
    gamma = tl.load(scale + at, mask=inside, other=0.0).to(tl.float32)
    beta = tl.load(shift + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + sample * F * R + at, (normed * rstd * gamma + beta).to(out.dtype.element_ty), mask=inside)


@triton.jit
def factorise_backward(
    x, y, scale, dnormed, dx, parts, samples, F, D, R, eps,
    BF: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    f, d, r = tl.arange(0, BF), tl.arange(0, BD), tl.arange(0, BR)
    inside = (f < F)[:, None] & (r < R)[None, :]
    known = (f < F)[:, None] & (d < D)[None, :]
    at = f[:, None] * R + r[None, :]
    weight = widened(tl.load(y + at, mask=inside, other=0.0))
    gamma = tl.load(scale + at, mask=inside, other=0.0).to(tl.float32)
    dy = tl.zeros((BF, BR), tl.float32)
    dgamma = tl.zeros((BF, BR), tl.float32)
    dbeta = tl.zeros((BF, BR), tl.float32)
    zero = tl.zeros((), tl.int64)
    for each in range(tl.program_id(0), samples, tl.num_programs(0)):
        sample = zero + each
        place = sample * F * D + f[:, None] * D + d[None, :]
        v = widened(tl.load(x + place, mask=known, other=0.0))
        g = tl.load(dnormed + sample * F * R + at, mask=inside, other=0.0).to(tl.float32)
        z, normed, rstd = interactions(v, weight, inside, F * R, eps, EXACT)
        normed *= rstd
        dgamma += g * normed
        dbeta += g
        g *= gamma
        df = (g - tl.sum(g) / (F * R) - normed * (tl.sum(g * normed) / (F * R))) * rstd
        df = tl.where(inside, df, 0.0).to(v.dtype)
        dz = tl.dot(tl.trans(v), df, input_precision=EXACT).to(v.dtype)
        dy += tl.dot(v, dz, input_precision=EXACT)
        dv = tl.dot(df, tl.trans(z), input_precision=EXACT)
        dv = tl.dot(weight, tl.trans(dz), dv, input_precision=EXACT)
        tl.store(dx + place, dv.to(dx.dtype.element_ty), mask=known)
    part = parts + tl.program_id(0).to(tl.int64) * 3 * F * R + at
    tl.store(part, dy, mask=inside)
    tl.store(part + F * R, dgamma, mask=inside)
    tl.store(part + 2 * F * R, dbeta, mask=inside)


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


class FactorizationMachine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, scale, shift, first, first_bias, second, second_bias, eps):
        batch, fields, dim = x.shape
        rank = y.shape[1]
        sizes = {"BF": max(16, triton.next_power_of_2(fields)), "BD": max(16, triton.next_power_of_2(dim))}
        sizes |= {"BR": max(16, triton.next_power_of_2(rank)), "num_warps": WARPS}
        sizes["EXACT"] = "tf32x3" if x.dtype == torch.float16 else "ieee"
        new = {"dtype": x.dtype, "device": x.device}
        normed = torch.empty((batch, fields * rank), **new)
        hidden, raw = (torch.empty((batch, first.shape[0]), **new) for _ in range(2))
        out = torch.empty((batch, second.shape[0]), **new)
        if batch:
            factorise[(batch,)](x, y, scale, shift, normed, fields, dim, rank, eps, **sizes)
            multiply(normed, first.t(), hidden, bias=first_bias, raw=raw, gelu=True, tile=(TALL, 64))
            multiply(hidden, second.t(), out, bias=second_bias, tile=(TALL, 64))
        ctx.save_for_backward(x, y, scale, first, second, normed, raw, hidden)
        ctx.eps, ctx.sizes = eps, sizes
        return out

    @staticmethod
    def backward(ctx, dout):
        x, y, scale, first, second, normed, raw, hidden = ctx.saved_tensors
        batch, fields, dim = x.shape
        dout = dout.contiguous()
        dhidden, dx = torch.empty_like(hidden), torch.empty_like(x)
        wide = torch.float32 if x.dtype == torch.float16 else x.dtype
        dnormed = torch.empty_like(normed, dtype=wide)
        dfirst, dsecond = torch.empty_like(first), torch.empty_like(second)
        dfirst_bias, dsecond_bias = torch.empty_like(first[:, 0]), torch.empty_like(second[:, 0])
        multiply(dout, second, dhidden, raw=raw, tile=(TALL, 64))
        multiply(dout.t(), hidden, dsecond, sums=dsecond_bias, tile=(64, 64))
        multiply(dhidden, first, dnormed, tile=(TALL, 64))
        multiply(dhidden.t(), normed, dfirst, sums=dfirst_bias, tile=(64, 64))
        programs = max(1, min(batch, PROGRAMS))
        parts = torch.empty((programs, 3, y.numel()), dtype=torch.float32, device=x.device)
        factorise_backward[(programs,)](
            x, y, scale, dnormed, dx, parts, batch, fields, dim, y.shape[1], ctx.eps, **ctx.sizes
        )
        small = summed(parts, y)
        dy = small[0].view_as(y)
        return dx, dy, small[1], small[2], dfirst, dfirst_bias, dsecond, dsecond_bias, None


class ModelNew(nn.Module):
    def __init__(self, fields, dim, rank, hidden, outputs, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.outputs, self.dim = outputs, dim
        self.projection = nn.Parameter((torch.randn(fields, rank) * fields**-0.5).to(kind))
        self.norm = nn.LayerNorm(fields * rank, dtype=kind)
        self.first = nn.Linear(fields * rank, hidden, dtype=kind)
        self.second = nn.Linear(hidden, outputs * dim, dtype=kind)

    def forward(self, x):
        fields, rank = self.projection.shape
        if x.dim() != 3 or x.shape[1:] != (fields, self.dim) or x.dtype != self.projection.dtype:
            raise ValueError(f"embeddings [batch, {fields}, {self.dim}] of the parameters' type are needed")
        if x.dtype == torch.float64 or triton.next_power_of_2(fields) * triton.next_power_of_2(self.dim) > 32768:
            raise ValueError("at most 32768 numbers a sample, and not in float64")
        out = FactorizationMachine.apply(
            x.contiguous(), self.projection, self.norm.weight, self.norm.bias, self.first.weight, self.first.bias,
            self.second.weight, self.second.bias, self.norm.eps,
        )  # fmt: skip
        return out.view(-1, self.outputs, self.dim)
