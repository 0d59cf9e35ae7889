"""Flash attention with its backward: scores are computed again from the sums of the forward pass. One kernel gives dQ
and each row's <P, dP>, one dK and dV, in which a shared key head walks over all its query heads (or, where that leaves
the device idle, one query head each, and a third kernel adds up).

Bound by tensor cores: 2 products of L^2 d / 2 forwards and 9 backwards.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BM": [64, 128], "BN": [64, 128], "STAGES": [2, 3], "QUERY_STEP": [32, 64], "KEY_STEP": [32, 64]}
BM = 128
BN = 64
WARPS = 8
STAGES = 3
QUERY_STEP = 64
KEY_STEP = 64


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
    q, k, v, out, tops, sums, heads, groups, L, D, scale,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    shared = (head // heads) * (heads // groups) + (head % heads) // groups
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    real = (m < L)[:, None] & (d < D)[None, :]
    at = (head * L + m)[:, None] * D + d[None, :]
    query = tl.load(q + at, mask=real, other=0.0)
    k += shared * L * D
    v += shared * L * D
    acc = tl.zeros((BM, BD), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    edge, end = block * BM, tl.minimum(block * BM + BM, L)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, 0, edge, D, scale, BN, BD, False)
    acc, top, total = attend_blocks(acc, top, total, query, k, v, m, edge, end, D, scale, BN, BD, True)
    tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)
    if KEEP:
        tl.store(tops + head * L + m, top, mask=m < L)
        tl.store(sums + head * L + m, total, mask=m < L)


@triton.jit
def again(s, top, scale):
    """A power of the forward pass. A score that is made anew may be a rounding above the largest one, which is 1,000 at
    10^10: no power is above 1 all the same. A NaN stays one."""
    gap = s - top
    return tl.exp2(tl.where(gap > 0, 0.0, gap) * scale)


@triton.jit
def fitted(ds, kind: tl.constexpr):
    """Gradients of scores as `kind`, and what each row is too small by. fp16 ends at 65,504, and products of heads that
    are shifted by 50 are beyond: there a row's largest number becomes 2^10."""
    unit = tl.full((ds.shape[0],), 1.0, tl.float32)
    if kind == tl.float16:
        exponent = tl.maximum(tl.max(tl.abs(ds), 1).to(tl.int32, bitcast=True) >> 23, 11)
        ds *= ((264 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
        unit = ((exponent - 10) << 23).to(tl.float32, bitcast=True)
    return ds.to(kind), unit


@triton.jit
def ended(x, kind: tl.constexpr):
    """Finite numbers stay finite in fp16."""
    if kind == tl.float16:
        x = tl.where(tl.abs(x) < float("inf"), tl.minimum(tl.maximum(x, -65504.0), 65504.0), x)
    return x.to(kind)


@triton.jit
def query_gradients(
    q, k, v, dout, tops, sums, dots, dq, heads, groups, L, D, scale, factor,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    shared = (head // heads) * (heads // groups) + (head % heads) // groups
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    real = (m < L)[:, None] & (d < D)[None, :]
    at = (head * L + m)[:, None] * D + d[None, :]
    query = tl.load(q + at, mask=real, other=0.0)
    go = tl.load(dout + at, mask=real, other=0.0)
    top = tl.load(tops + head * L + m, mask=m < L, other=0.0)
    inverse = 1.0 / tl.load(sums + head * L + m, mask=m < L, other=1.0)
    acc = tl.zeros((BM, BD), tl.float32)
    dot = tl.zeros((BM,), tl.float32)
    end = tl.minimum(block * BM + BM, L)
    # <P, dP> of each row. <dO, O> is the same but for roundings, which are all that is left of a row with one key.
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        known = (n < L)[:, None] & (d < D)[None, :]
        there = (shared * L + n)[:, None] * D + d[None, :]
        keys = tl.load(k + there, mask=known, other=0.0)
        values = tl.load(v + there, mask=known, other=0.0)
        s = tl.dot(query, tl.trans(keys), input_precision="ieee")
        p = tl.where(m[:, None] >= n[None, :], again(s, top[:, None], scale) * inverse[:, None], 0.0)
        dot += tl.sum(p * tl.dot(go, tl.trans(values), input_precision="ieee"), 1)
    tl.store(dots + head * L + m, dot, mask=m < L)
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        known = (n < L)[:, None] & (d < D)[None, :]
        there = (shared * L + n)[:, None] * D + d[None, :]
        keys = tl.load(k + there, mask=known, other=0.0)
        values = tl.load(v + there, mask=known, other=0.0)
        s = tl.dot(query, tl.trans(keys), input_precision="ieee")
        p = tl.where(m[:, None] >= n[None, :], again(s, top[:, None], scale) * inverse[:, None], 0.0)
        ds = p * (tl.dot(go, tl.trans(values), input_precision="ieee") - dot[:, None])
        ds, unit = fitted(tl.where(m[:, None] >= n[None, :], ds, 0.0), keys.dtype)
        if keys.dtype == tl.float16:
            acc += tl.dot(ds, keys) * unit[:, None]
        else:
            acc = tl.dot(ds, keys, acc, input_precision="ieee")
    tl.store(dq + at, ended(acc * factor, dq.dtype.element_ty), mask=real)


@triton.jit
def key_gradients(
    q, k, v, dout, tops, sums, dots, dk, dv, heads, groups, walked, L, D, scale, factor,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """`walked`: how many query heads one program walks over, all of a group or one."""
    part = tl.program_id(1).to(tl.int64)
    first = part * walked
    shared = (first // heads) * (heads // groups) + (first % heads) // groups
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, BD)
    real = (n < L)[:, None] & (d < D)[None, :]
    there = (shared * L + n)[:, None] * D + d[None, :]
    keys = tl.load(k + there, mask=real, other=0.0)
    values = tl.load(v + there, mask=real, other=0.0)
    dkeys = tl.zeros((BN, BD), tl.float32)
    dvalues = tl.zeros((BN, BD), tl.float32)
    low = tl.program_id(0) * BN // BM * BM
    for step in range(0, walked):
        head = first + step
        for start in range(low, L, BM):
            m = start + tl.arange(0, BM)
            known = (m < L)[:, None] & (d < D)[None, :]
            at = (head * L + m)[:, None] * D + d[None, :]
            query = tl.load(q + at, mask=known, other=0.0)
            go = tl.load(dout + at, mask=known, other=0.0)
            top = tl.load(tops + head * L + m, mask=m < L, other=0.0)
            inverse = 1.0 / tl.load(sums + head * L + m, mask=m < L, other=1.0)
            dot = tl.load(dots + head * L + m, mask=m < L, other=0.0)
            seen = (m[None, :] >= n[:, None]) & (m < L)[None, :]
            s = tl.dot(keys, tl.trans(query), input_precision="ieee")
            p = tl.where(seen, again(s, top[None, :], scale) * inverse[None, :], 0.0)
            dvalues = tl.dot(p.to(go.dtype), go, dvalues, input_precision="ieee")
            ds = p * (tl.dot(values, tl.trans(go), input_precision="ieee") - dot[None, :])
            ds, unit = fitted(tl.where(seen, ds, 0.0), query.dtype)
            if query.dtype == tl.float16:
                dkeys += tl.dot(ds, query) * unit[:, None]
            else:
                dkeys = tl.dot(ds, query, dkeys, input_precision="ieee")
    at = (part * L + n)[:, None] * D + d[None, :]
    tl.store(dk + at, ended(dkeys * factor, dk.dtype.element_ty), mask=real)
    tl.store(dv + at, ended(dvalues, dv.dtype.element_ty), mask=real)


@triton.jit
def add_heads(dk_parts, dv_parts, dk, dv, size, groups, BLOCK: tl.constexpr):
    """The sums over the query heads of each shared head; `size`: elements of one head."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1).to(tl.int64)
    dkeys = tl.zeros((BLOCK,), tl.float32)
    dvalues = tl.zeros((BLOCK,), tl.float32)
    for part in range(0, groups):
        at = (head * groups + part) * size + i
        dkeys += tl.load(dk_parts + at, mask=i < size, other=0.0)
        dvalues += tl.load(dv_parts + at, mask=i < size, other=0.0)
    tl.store(dk + head * size + i, ended(dkeys, dk.dtype.element_ty), mask=i < size)
    tl.store(dv + head * size + i, ended(dvalues, dv.dtype.element_ty), mask=i < size)


def checked(q, k, v):
    batch, heads, length, dim = q.shape
    shared = k.shape[1]
    if v.shape != k.shape or k.shape != (batch, shared, length, dim) or heads % max(1, shared) or dim > 256:
        raise ValueError("queries, keys and values of one length are needed, with at most 256 numbers a head")
    if q.dtype == torch.float64 or not q.dtype == k.dtype == v.dtype:
        raise ValueError("one type for all is needed, and not float64")
    return q.contiguous(), k.contiguous(), v.contiguous()


def forward(q, k, v, keep):
    """The output, and for `keep` each row's maximum and sum of exponentials: one number for both would lose what the
    maximum is large beside."""
    batch, heads, length, dim = q.shape
    out = torch.empty_like(q)
    tops, sums = (
        torch.empty((batch, heads, length) if keep else (1,), dtype=torch.float32, device=q.device) for _ in range(2)
    )
    if out.numel():
        wide = q.element_size() == 4 or dim > 128
        bm = 64 if wide else min(BM, max(16, triton.next_power_of_2(length)))
        bn = min(BN, 32) if wide else min(BN, bm)
        attend[(triton.cdiv(length, bm), batch * heads)](
            q, k, v, out, tops, sums, heads, heads // k.shape[1], length, dim, math.log2(math.e) / math.sqrt(dim),
            BM=bm, BN=bn, BD=max(16, triton.next_power_of_2(dim)), KEEP=keep,
            num_warps=WARPS if bm == 128 else 4, num_stages=2 if wide else STAGES,
        )  # fmt: skip
    return out, tops, sums


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        out, tops, sums = forward(q, k, v, keep=True)
        ctx.save_for_backward(q, k, v, tops, sums)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, tops, sums = ctx.saved_tensors
        dout = dout.contiguous()
        batch, heads, length, dim = q.shape
        shared = k.shape[1]
        groups = heads // shared
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        if not q.numel():
            return dq, dk, dv
        dots = torch.empty_like(sums)
        wide = q.element_size() == 4 or dim > 128
        large = 64 if wide else min(128, max(16, triton.next_power_of_2(length)))
        sizes = {"BD": max(16, triton.next_power_of_2(dim)), "num_warps": 8 if large == 128 else 4, "num_stages": 2}
        scale, factor = math.log2(math.e) / math.sqrt(dim), 1.0 / math.sqrt(dim)
        blocks = triton.cdiv(length, large)
        query_gradients[(blocks, batch * heads)](
            q, k, v, dout, tops, sums, dots, dq, heads, groups, length, dim, scale, factor,
            BM=large, BN=min(KEY_STEP, large, 32 if wide else 64), **sizes,
        )  # fmt: skip
        # A program walks over a whole group where there are programs enough; else over one head, in float32 parts.
        walked = groups if blocks * batch * shared >= 512 else 1
        parts = (dk, dv)
        if walked < groups:
            parts = tuple(torch.empty(q.shape, dtype=torch.float32, device=q.device) for _ in range(2))
        key_gradients[(blocks, batch * heads // walked)](
            q, k, v, dout, tops, sums, dots, *parts, heads, groups, walked, length, dim, scale, factor,
            BM=min(QUERY_STEP, large, 32 if wide else 64), BN=large, **sizes,
        )  # fmt: skip
        if walked < groups:
            size = length * dim
            add_heads[(triton.cdiv(size, 1024), batch * shared)](*parts, dk, dv, size, groups, BLOCK=1024)
        return dq, dk, dv


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return Attention.apply(*checked(q, k, v))
