"""Each sequence's cache is cut into stretches that run side by side; the heads of a group share every key that is
read, and a small second kernel merges the stretches. Bound by memory: keys and values are read once, and only those
that count.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"STRETCH": [256, 512, 1024], "BLOCK": [32, 64, 128], "WARPS": [2, 4, 8], "STAGES": [2, 3, 4]}
CONSTRAINTS = ["STRETCH >= BLOCK"]
STRETCH = 512
BLOCK = 64
WARPS = 4
STAGES = 3


@triton.jit
def attend(
    q, keys, values, table, last, sums, stats, heads, kv_heads, dim, held, page, splits, scale,
    GROUP: tl.constexpr, DIM: tl.constexpr, STRETCH: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split, pair = tl.program_id(0), tl.program_id(1)
    batch, kv = pair // kv_heads, pair % kv_heads
    final = tl.minimum(tl.load(last + batch), held * page - 1).to(tl.int32)
    low = split * STRETCH
    if low <= final:
        group = heads // kv_heads
        member, col = tl.arange(0, GROUP), tl.arange(0, DIM)
        head = batch * heads + kv * group + member
        usable = (member[:, None] < group) & (col[None, :] < dim)
        query = tl.load(q + head[:, None] * dim + col[None, :], mask=usable, other=0.0)
        top = tl.full((GROUP,), -float("inf"), dtype=tl.float32)
        total = tl.zeros((GROUP,), dtype=tl.float32)
        acc = tl.zeros((GROUP, DIM), dtype=tl.float32)
        for at in tl.range(low, tl.minimum(low + STRETCH, final + 1), BLOCK, num_stages=STAGES):
            token = at + tl.arange(0, BLOCK)
            here = token <= final
            number = tl.load(table + batch * held + token // page, mask=here, other=0).to(tl.int64)
            line = ((number * page + token % page) * kv_heads + kv) * dim
            inside = here[:, None] & (col[None, :] < dim)
            k = tl.load(keys + line[:, None] + col[None, :], mask=inside, other=0.0)
            scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(here[None, :], scores, -float("inf"))
            higher = tl.maximum(top, tl.max(scores, axis=1))
            base = tl.where(higher == -float("inf"), 0.0, higher)
            kept = tl.exp2(top - base)
            mass = tl.exp2(scores - base[:, None])
            v = tl.load(values + line[:, None] + col[None, :], mask=inside, other=0.0)
            total = total * kept + tl.sum(mass, axis=1)
            acc = acc * kept[:, None] + tl.dot(mass.to(v.dtype), v, input_precision="ieee")
            top = higher
        place = (head * splits + split).to(tl.int64)
        tl.store(stats + 2 * place, top, mask=member < group)
        tl.store(stats + 2 * place + 1, total, mask=member < group)
        tl.store(sums + place[:, None] * dim + col[None, :], acc, mask=usable)


@triton.jit
def merge(sums, stats, last, out, heads, dim, longest, splits, STRETCH: tl.constexpr, SPLITS: tl.constexpr, DIM: tl.constexpr):  # fmt: skip  # noqa: E501
    head = tl.program_id(0)
    final = tl.minimum(tl.load(last + head // heads), longest - 1)
    used = final // STRETCH + 1
    split, col = tl.arange(0, SPLITS), tl.arange(0, DIM)
    place = head.to(tl.int64) * splits + split
    top = tl.load(stats + 2 * place, mask=split < used, other=-float("inf"))
    highest = tl.max(top, axis=0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    share = tl.where(split < used, tl.exp2(top - base), 0.0)
    total = tl.sum(share * tl.load(stats + 2 * place + 1, mask=split < used, other=0.0), axis=0)
    inside = (split[:, None] < used) & (col[None, :] < dim)
    part = tl.load(sums + place[:, None] * dim + col[None, :], mask=inside, other=0.0)
    found = tl.sum(part * share[:, None], axis=0) / total
    tl.store(out + head.to(tl.int64) * dim + col, found.to(out.dtype.element_ty), mask=col < dim)


class ModelNew(nn.Module):
    def forward(self, q, keys, values, table, last):
        q, keys, values, table = (each.contiguous() for each in (q, keys, values, table))
        (batch, heads, dim), (_pages, page, kv_heads, _dim), held = q.shape, keys.shape, table.shape[1]
        splits = triton.cdiv(held * page, STRETCH)
        sums = torch.empty(batch * heads, splits, dim, dtype=torch.float32, device=q.device)
        stats = torch.empty(batch * heads, splits, 2, dtype=torch.float32, device=q.device)
        out, wide = torch.empty_like(q), max(16, triton.next_power_of_2(dim))
        group = max(16, triton.next_power_of_2(heads // kv_heads))
        attend[(splits, batch * kv_heads)](
            q, keys, values, table, last, sums, stats, heads, kv_heads, dim, held, page, splits,
            math.log2(math.e) / math.sqrt(dim), GROUP=group, DIM=wide, STRETCH=STRETCH, BLOCK=BLOCK,
            STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
        merge[(batch * heads,)](
            sums, stats, last, out, heads, dim, held * page, splits,
            STRETCH=STRETCH, SPLITS=triton.next_power_of_2(splits), DIM=wide, num_warps=4,
        )  # fmt: skip
        return out
