"""Flash attention that writes the residual stream in its place, RMSNorm, both projections of SwiGLU in one product with
the gate as its epilogue, and the last projection with the residual as its epilogue.

Bound by tensor cores: the products of the feed-forward layer, which read each weight about once.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"DUAL_ROWS": [64, 128], "DEPTH": [32, 64], "STAGES": [3, 4], "DOWN_COLS": [128, 256], "BN": [64, 128]}
DUAL_ROWS = 128
DEPTH = 64
STAGES = 4
DOWN_COLS = 128
BN = 64


@triton.jit
def attend_blocks(
    acc, top, total, query, k, v, m, low, high, D, scale,
    BN: tl.constexpr, BD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys `low` to `high` for one block of queries, with a running softmax in powers of two. Scores are scaled after
    the largest is taken off: of s * scale - top the compiler makes one rounding, and the largest, of 10^9, is then not
    exactly top, nor its power exactly 1."""
    d = tl.arange(0, BD)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        known = (n < high)[:, None] & (d < D)[None, :]
        at = n.to(tl.int64)[:, None] * D + d[None, :]
        keys = tl.load(k + at, mask=known, other=0.0)
        s = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if MASKED:
            s = tl.where((m[:, None] >= n[None, :]) & (n < high)[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)  # nothing but -inf so far: no NaN from a difference of two
        p = tl.exp2((s - safe[:, None]) * scale)
        shrink = tl.exp2((top - safe) * scale)
        values = tl.load(v + at, mask=known, other=0.0)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
        top = new
    return acc, top, total


@triton.jit
def attend(
    q, k, v, x, out, heads, groups, L, D, scale, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """x plus attention, in x's layout [batch, length, heads * D]."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    shared = (head // heads) * (heads // groups) + (head % heads) // groups
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    real = (m < L)[:, None] & (d < D)[None, :]
    query = tl.load(q + (head * L + m)[:, None] * D + d[None, :], mask=real, other=0.0)
    k += shared * L * D
    v += shared * L * D
    acc = tl.zeros((BM, BD), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    edge, end = block * BM, tl.minimum(block * BM + BM, L)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, 0, edge, D, scale, BN, BD, False)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, edge, end, D, scale, BN, BD, True)
    at = ((head // heads * L + m) * heads + head % heads)[:, None] * D + d[None, :]
    result = acc / total[:, None] + tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def normalise(x, weight, out, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N
    n = tl.arange(0, BLOCK)
    v = tl.load(x + row + n, mask=n < N, other=0.0).to(tl.float32)
    w = tl.load(weight + n, mask=n < N, other=0.0).to(tl.float32)
    v *= 1.0 / tl.sqrt(tl.sum(v * v, 0) / N + eps)
    tl.store(out + row + n, (v * w).to(out.dtype.element_ty), mask=n < N)


@triton.jit
def tile_of(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Tiles of GROUP rows of blocks one after the other, so that a column of weights is read by neighbours."""
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tl.program_id(0) // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    within = tl.program_id(0) % (GROUP * columns)
    return first + within % height, within // height


@triton.jit
def gated_products(
    x, gate, up, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """silu(x gate^T) * (x up^T)."""
    row, column = tile_of(M, N, BM, BN, 16)
    m, n, k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    # Rows and columns beyond the end are read again from the start, and not stored.
    left = x + (m % M).to(tl.int64)[:, None] * K + k[None, :]
    there = (n % N).to(tl.int64)[None, :] * K + k[:, None]
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if EVEN:
            a = tl.load(left + start)
            g = tl.dot(a, tl.load(gate + there + start), g, input_precision="ieee")
            u = tl.dot(a, tl.load(up + there + start), u, input_precision="ieee")
        else:
            known = k < K - start
            a = tl.load(left + start, mask=known[None, :], other=0.0)
            g = tl.dot(a, tl.load(gate + there + start, mask=known[:, None], other=0.0), g, input_precision="ieee")
            u = tl.dot(a, tl.load(up + there + start, mask=known[:, None], other=0.0), u, input_precision="ieee")
    result = g * tl.sigmoid(g) * u
    at = out + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def last_product(
    x, weight, residual, out, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """residual + x weight^T."""
    row, column = tile_of(M, N, BM, BN, 8)
    m, n, k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    left = x + (m % M).to(tl.int64)[:, None] * K + k[None, :]
    right = weight + (n % N).to(tl.int64)[None, :] * K + k[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if EVEN:
            acc = tl.dot(tl.load(left + start), tl.load(right + start), acc, input_precision="ieee")
        else:
            known = k < K - start
            a = tl.load(left + start, mask=known[None, :], other=0.0)
            acc = tl.dot(a, tl.load(right + start, mask=known[:, None], other=0.0), acc, input_precision="ieee")
    real = (m < M)[:, None] & (n < N)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    acc += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=real)


class ModelNew(nn.Module):
    def __init__(self, heads, dim, hidden, dtype="float32", eps=1e-5):
        super().__init__()
        width, kind = heads * dim, getattr(torch, dtype)
        self.eps = eps
        self.norm = nn.Parameter(torch.ones(width, dtype=kind))
        self.gate = nn.Linear(width, hidden, bias=False, dtype=kind)
        self.up = nn.Linear(width, hidden, bias=False, dtype=kind)
        self.down = nn.Linear(hidden, width, bias=False, dtype=kind)

    def forward(self, q, k, v, x):
        batch, heads, length, dim = q.shape
        shared, width, hidden = k.shape[1], heads * dim, self.gate.weight.shape[0]
        if v.shape != k.shape or k.shape != (batch, shared, length, dim) or heads % max(1, shared) or dim > 256:
            raise ValueError("queries, keys and values of one length are needed, with at most 256 numbers a head")
        if x.shape != (batch, length, width) or self.norm.numel() != width or width > 16384:
            raise ValueError("a residual stream [batch, length, heads * dim] of the weights' width is needed")
        if len({each.dtype for each in (q, k, v, x, self.norm)}) > 1 or x.dtype == torch.float64:
            raise ValueError("one type for all is needed, and not float64")
        q, k, v, x = q.contiguous(), k.contiguous(), v.contiguous(), x.contiguous()
        stream, normed, out = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        if not x.numel():
            return out
        narrow = x.element_size() == 4 or dim > 128
        bm = min(64 if narrow else 128, max(16, triton.next_power_of_2(length)))
        attend[(triton.cdiv(length, bm), batch * heads)](
            q, k, v, x, stream, heads, heads // shared, length, dim, math.log2(math.e) / math.sqrt(dim),
            BM=bm, BN=min(bm, 32 if narrow else BN), BD=max(16, triton.next_power_of_2(dim)),
            num_warps=8 if bm == 128 else 4, num_stages=2,
        )  # fmt: skip
        rows = batch * length
        normalise[(rows,)](stream, self.norm, normed, width, self.eps, BLOCK=triton.next_power_of_2(width), num_warps=8)
        gated = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
        gate, up, down = (each.weight.contiguous() for each in (self.gate, self.up, self.down))
        depth = 32 if narrow else DEPTH
        tall, broad = (64, 64) if narrow else (DUAL_ROWS if rows > 64 else 64, 128)
        gated_products[(triton.cdiv(rows, tall) * triton.cdiv(hidden, broad),)](
            normed, gate, up, gated, rows, hidden, width, BM=tall, BN=broad, BK=depth, EVEN=width % depth == 0,
            num_warps=8 if tall == 128 else 4, num_stages=2 if narrow else STAGES,
        )  # fmt: skip
        # Few rows make few tiles of the narrow output: then tiles are small, so that most processors have one.
        if narrow or rows <= 512:
            tall, broad = 64, 64 if narrow or rows <= 128 else 128
        else:
            tall, broad = 128, DOWN_COLS if rows >= 4096 else 128
        last_product[(triton.cdiv(rows, tall) * triton.cdiv(width, broad),)](
            gated, down, stream, out, rows, width, hidden, BM=tall, BN=broad, BK=depth, EVEN=hidden % depth == 0,
            num_warps=8 if tall * broad >= 16384 else 4, num_stages=2 if narrow else STAGES,
        )  # fmt: skip
        return out
