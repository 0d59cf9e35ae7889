"""Flash attention: a block of queries walks over its keys with a running softmax; blocks behind the diagonal carry no
mask, those beyond it are never touched, and the longest rows start first. Key heads are shared by index, not repeated.

Bound by tensor cores (4 L^2 d / 2 per head), next to the exponentials.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BM": [64, 128], "BN": [32, 64, 128], "WARPS": [4, 8], "STAGES": [2, 3, 4]}
BM = 128
BN = 64
WARPS = 8
STAGES = 3


@triton.jit
def attend_blocks(
    acc, top, total, query, k, v, m, low, high, D, scale,
    BN: tl.constexpr, BD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys `low` to `high` for one block of queries, with a running softmax in powers of two. Scores are scaled after
    the largest is taken off: of s * scale - top the compiler makes one rounding where nothing is masked, and two behind
    a mask. The largest, of 10^9, was 34 above top by the first and equal by the second: the last keys had no weight."""
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


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return forward(*checked(q, k, v), keep=False)[0]
