"""Postings are added into int32 scores in the second cache. For the best k, documents are cut into groups: the k-th
largest of the groups' maxima is a bound below the k-th best document, and exactly k groups reach it. Only what reaches
it in those groups is put in order, a few hundred keys.

Three launches and a fill where there were five and a fill, and four allocations for seven: a small call waits for the
host, whose time they are. The last of a query's programs to find a group's maximum finds the bound, two bits at a
time, and no sort of a thousand keys is needed, which was a third of the device's time; the last one to collect counts
for each key how many are larger. Who is last is counted beside the scores, which are set to zero anyway.

Bound by the atomic additions of the postings, and by one pass over the scores; small queries by the host. Scores may
be negative.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [256, 512, 1024], "SPLITS": [4, 8, 16, 32], "TILE": [128, 256]}
BLOCK = 512
SPLITS = 8
TILE = 256
"""Keys that find their places at once; of four times as many at most places are found so, and more are sorted."""
LEAST = tl.constexpr(-(2**31))
"""A score can be no less, and what keys are made of is not negative."""


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
    return tl.where(document < count, (score - LEAST) * count + (count - 1 - document), -1)


@triton.jit
def is_last(counter, groups):
    """Whether all other programs of the query have come here, and what they stored before can be read."""
    tl.debug_barrier()  # all of this program's threads have stored
    last = tl.atomic_add(counter, 1, sem="acq_rel") == groups - 1
    tl.debug_barrier()
    return last


@triton.jit
def group_maxima(scores, work, count, groups, best, digits, SIZE: tl.constexpr, GROUPS: tl.constexpr):
    """`work`: of each query the groups' maxima; then its bound. Beyond the scores: three counters of each query."""
    q, group, queries = tl.program_id(1), tl.program_id(0), tl.num_programs(1)
    maxima = work + q.to(tl.int64) * groups
    tl.store(maxima + group, tl.max(keys_of(scores, q, group, count, SIZE), 0))
    if is_last(scores + queries.to(tl.int64) * count + 3 * q, groups):
        i = tl.arange(0, GROUPS)
        keys = tl.load(maxima + i, mask=i < groups, other=-1, cache_modifier=".cg")
        bound = tl.zeros((), tl.int64)
        for digit in range(digits):
            unit = tl.full((), 1, tl.int64) << (2 * (digits - 1 - digit))
            # Three counts in one number: they are 20 bits at most.
            reach = (keys >= bound + unit).to(tl.int64)
            reach += ((keys >= bound + 2 * unit).to(tl.int64) << 20) + ((keys >= bound + 3 * unit).to(tl.int64) << 40)
            reached = tl.sum(reach, 0)
            larger = ((reached & 0xFFFFF) >= best).to(tl.int64)
            larger += (((reached >> 20) & 0xFFFFF) >= best).to(tl.int64) + ((reached >> 40) >= best).to(tl.int64)
            bound += larger * unit
        tl.store(work + queries.to(tl.int64) * groups + q, bound)


@triton.jit
def collect(
    scores, work, scores_out, documents_out, count, groups, best, room,
    SIZE: tl.constexpr, TILE: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    q, group, queries = tl.program_id(1), tl.program_id(0), tl.num_programs(1).to(tl.int64)
    counters = scores + queries * count + 3 * q
    bound = tl.load(work + queries * groups + q)
    kept = work + queries * (groups + 1) + q.to(tl.int64) * room
    if tl.load(work + q.to(tl.int64) * groups + group) >= bound:
        keys = keys_of(scores, q, group, count, SIZE)
        chosen = (keys >= bound).to(tl.int32)
        place = tl.atomic_add(counters + 1, tl.sum(chosen, 0), sem="relaxed") + tl.cumsum(chosen, 0) - 1
        tl.store(kept + place, keys, mask=chosen > 0)
    if is_last(counters + 2, groups):
        total = tl.atomic_add(counters + 1, 0, sem="relaxed")
        if total <= 4 * TILE:  # a key's place is how many are larger: no two are equal
            for own_start in range(0, total, TILE):
                own_at = own_start + tl.arange(0, TILE)
                own = tl.load(kept + own_at, mask=own_at < total, other=-1, cache_modifier=".cg")
                place = tl.zeros((TILE,), tl.int32)
                for start in range(0, total, 16):
                    for at in tl.static_range(16):  # loads that do not wait for each other
                        other = tl.load(kept + start + at, mask=start + at < total, other=-1, cache_modifier=".cg")
                        place += (other > own).to(tl.int32)
                wanted = (own_at < total) & (place < best)
                tl.store(scores_out + q * best + place, own // count + LEAST, mask=wanted)
                tl.store(documents_out + q * best + place, count - 1 - own % count, mask=wanted)
        else:
            i = tl.arange(0, SORTED)
            leading = tl.full((SORTED,), -1, tl.int64)
            for start in range(0, total, SORTED):
                some = tl.load(kept + start + i, mask=start + i < total, other=-1, cache_modifier=".cg")
                # The larger of one descending and one ascending list, place by place, are the best of both.
                leading = tl.sort(tl.maximum(leading, tl.sort(some)), descending=True)
            tl.store(scores_out + q * best + i, leading // count + LEAST, mask=i < best)
            tl.store(documents_out + q * best + i, count - 1 - leading % count, mask=i < best)


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
        digits = (32 + count.bit_length() + 1) // 2
        if digits > 31:
            raise ValueError("score and document are one number of 62 bits")
        offsets, documents, impacts = offsets.contiguous(), documents.contiguous(), impacts.contiguous()
        terms, weights = terms.contiguous(), weights.contiguous()
        found = [torch.empty((queries, best), dtype=torch.int64, device=terms.device) for _ in range(2)]
        if not queries or not best:
            return found[0], found[1]
        size = max(16, triton.next_power_of_2(triton.cdiv(count, 1024)))
        groups = triton.cdiv(count, size)
        room = min(groups, best) * size
        scores = torch.zeros(queries * (count + 3), dtype=torch.int32, device=terms.device)
        work = torch.empty(queries * (groups + 1 + room), dtype=torch.int64, device=terms.device)
        if per_query:
            add_postings[(queries * per_query, SPLITS)](
                offsets, documents, impacts, terms, weights, scores, count, per_query, BLOCK=BLOCK
            )
        warps = max(4, min(8, size // 256))
        group_maxima[(groups, queries)](
            scores, work, count, groups, best, digits,
            SIZE=size, GROUPS=max(2, triton.next_power_of_2(groups)), num_warps=warps,
        )  # fmt: skip
        collect[(groups, queries)](
            scores, work, found[0], found[1], count, groups, best, room,
            SIZE=size, TILE=TILE, SORTED=max(256, triton.next_power_of_2(best)), num_warps=warps,
        )  # fmt: skip
        return found[0], found[1]
