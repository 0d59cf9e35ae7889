"""Postings are added into int32 scores in the second cache. For the best k, documents are cut into groups: the k-th
largest of the groups' maxima is a bound below the k-th best document, and exactly k groups reach it. Only what reaches
it in those groups is sorted, a few hundred keys.

Bound by the atomic additions of the postings, and by one pass over the scores; small queries by six launches.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [256, 512, 1024], "SPLITS": [4, 8, 16, 32], "FINAL": [256, 512]}
BLOCK = 512
SPLITS = 8
FINAL = 256


@triton.jit
def add_postings(offsets, documents, impacts, terms, weights, scores, count, per_query, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    term = tl.load(terms + part)
    weight = tl.load(weights + part).to(tl.int32)
    end = tl.load(offsets + term + 1)
    row = scores + (part // per_query).to(tl.int64) * count
    for start in range(tl.load(offsets + term) + tl.program_id(1) * BLOCK, end, tl.num_programs(1) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        document = tl.load(documents + at, mask=at < end, other=0)
        impact = tl.load(impacts + at, mask=at < end, other=0).to(tl.int32)
        tl.atomic_add(row + document, weight * impact, mask=at < end, sem="relaxed")


@triton.jit
def keys_of(scores, q, group, count, SIZE: tl.constexpr):
    """Score and document in one number, larger for a better score and then for a lower document; -1 beyond the end."""
    document = group * SIZE + tl.arange(0, SIZE)
    score = tl.load(scores + q.to(tl.int64) * count + document, mask=document < count, other=0).to(tl.int64)
    return tl.where(document < count, score * count + (count - 1 - document), -1)


@triton.jit
def group_maxima(scores, maxima, count, groups, SIZE: tl.constexpr):
    q, group = tl.program_id(1), tl.program_id(0)
    tl.store(maxima + q * groups + group, tl.max(keys_of(scores, q, group, count, SIZE), 0))


@triton.jit
def bound_from_maxima(maxima, bounds, found, groups, best, GROUPS: tl.constexpr):
    q = tl.program_id(0)
    group = tl.arange(0, GROUPS)
    ordered = tl.sort(tl.load(maxima + q * groups + group, mask=group < groups, other=-1), descending=True)
    bound = tl.sum(tl.where(group == best - 1, ordered, 0), 0)
    tl.store(bounds + q, tl.where(groups < best, tl.full((), -1, tl.int64), bound))
    tl.store(found + q, 0)


@triton.jit
def collect(scores, maxima, bounds, found, kept, count, groups, room, SIZE: tl.constexpr):
    q, group = tl.program_id(1), tl.program_id(0)
    bound = tl.maximum(tl.load(bounds + q), 0)
    if tl.load(maxima + q * groups + group) >= bound:
        keys = keys_of(scores, q, group, count, SIZE)
        chosen = (keys >= bound).to(tl.int32)
        place = tl.atomic_add(found + q, tl.sum(chosen, 0), sem="relaxed") + tl.cumsum(chosen, 0) - 1
        tl.store(kept + q.to(tl.int64) * room + place, keys, mask=chosen > 0)


@triton.jit
def sort_best(kept, found, scores_out, documents_out, count, room, best, SIZE: tl.constexpr):
    q = tl.program_id(0)
    i = tl.arange(0, SIZE)
    leading = tl.full((SIZE,), -1, tl.int64)
    total = tl.load(found + q)
    for start in range(0, total, SIZE):
        keys = tl.load(kept + q.to(tl.int64) * room + start + i, mask=start + i < total, other=-1)
        # The larger of one descending and one ascending list, place by place, are the best of both.
        leading = tl.sort(tl.maximum(leading, tl.sort(keys)), descending=True)
    at = q * best + i
    tl.store(scores_out + at, leading // count, mask=i < best)
    tl.store(documents_out + at, count - 1 - leading % count, mask=i < best)


class ModelNew(nn.Module):
    def __init__(self, documents, best):
        super().__init__()
        self.documents, self.best = documents, best

    def forward(self, offsets, documents, impacts, terms, weights):
        queries, per_query = terms.shape
        count, best = self.documents, self.best
        if impacts.dtype != torch.int8 or weights.dtype != torch.int8 or per_query > 130000:
            raise ValueError("impacts and weights of a byte, and at most 130000 terms, are what int32 scores hold")
        if best > count or best > 1024:
            raise ValueError("the best of at least as many documents, and at most 1024, are found")
        offsets, documents, impacts = offsets.contiguous(), documents.contiguous(), impacts.contiguous()
        terms, weights = terms.contiguous(), weights.contiguous()
        found = [torch.empty((queries, best), dtype=torch.int64, device=terms.device) for _ in range(2)]
        if not queries or not best:
            return found[0], found[1]
        size = max(16, triton.next_power_of_2(triton.cdiv(count, 1024)))
        groups = triton.cdiv(count, size)
        room = min(groups, best) * size
        scores = torch.zeros((queries, count), dtype=torch.int32, device=terms.device)
        maxima = torch.empty((queries, groups), dtype=torch.int64, device=terms.device)
        bounds = torch.empty(queries, dtype=torch.int64, device=terms.device)
        reached = torch.empty(queries, dtype=torch.int32, device=terms.device)
        kept = torch.empty((queries, room), dtype=torch.int64, device=terms.device)
        if per_query:
            add_postings[(queries * per_query, SPLITS)](
                offsets, documents, impacts, terms, weights, scores, count, per_query, BLOCK=BLOCK
            )
        warps = max(1, min(8, size // 256))
        group_maxima[(groups, queries)](scores, maxima, count, groups, SIZE=size, num_warps=warps)
        bound_from_maxima[(queries,)](
            maxima, bounds, reached, groups, best, GROUPS=max(2, triton.next_power_of_2(groups)), num_warps=8
        )
        collect[(groups, queries)](
            scores, maxima, bounds, reached, kept, count, groups, room, SIZE=size, num_warps=warps
        )
        sort_best[(queries,)](
            kept, reached, found[0], found[1], count, room, best,
            SIZE=max(FINAL, triton.next_power_of_2(best)), num_warps=4,
        )  # fmt: skip
        return found[0], found[1]
