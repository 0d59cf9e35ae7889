"""One launch: each logit becomes an integer that orders as the logits do and carries its expert's number, so that the
k largest are k maxima of one register tile; loads are counted in registers and added by one atomic an expert and
program. Bound by latency for few experts and by memory for many.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"TILE": [1024, 2048, 4096], "WARPS": [2, 4, 8]}
TILE = 2048
WARPS = 4
LARGEST = 1024


@triton.jit
def route(
    logits, weights, chosen, loads, tokens, experts, k,
    TOKENS: tl.constexpr, EXPERTS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    expert = tl.arange(0, EXPERTS)
    here = token < tokens
    inside = here[:, None] & (expert[None, :] < experts)
    value = tl.load(logits + token[:, None].to(tl.int64) * experts + expert[None, :], mask=inside, other=0.0)
    value = value.to(tl.float32) + 0.0  # -0 is 0
    bits = value.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(value != value, 0x7FFFFFFF, order).to(tl.int64)  # NaN comes first, as in a sort
    # Of equal logits the lower number is the larger key.
    key = order * EXPERTS + (EXPERTS - 1 - expert)[None, :]
    key = tl.where(inside, key, -(2**62))
    slot = tl.arange(0, KEPT)
    best = tl.full((TOKENS, KEPT), -float("inf"), dtype=tl.float32)
    which = tl.zeros((TOKENS, KEPT), dtype=tl.int64)
    hits = tl.zeros((TOKENS, EXPERTS), dtype=tl.int32)
    for place in range(k):
        top = tl.max(key, axis=1)
        number = EXPERTS - 1 - (top & (EXPERTS - 1))
        own = expert[None, :] == number[:, None]
        found = tl.sum(tl.where(own, value, 0.0), axis=1)
        best = tl.where(slot[None, :] == place, found[:, None], best)
        which = tl.where(slot[None, :] == place, number[:, None], which)
        key = tl.where(own, -(2**62), key)
        hits += (own & here[:, None]).to(tl.int32)
    mass = tl.exp(best - tl.max(best, axis=1)[:, None])
    mass = mass / tl.sum(mass, axis=1)[:, None]
    mass = tl.where((tl.sum((best != best).to(tl.int32), axis=1) > 0)[:, None], float("nan"), mass)
    at = token[:, None].to(tl.int64) * k + slot[None, :]
    kept = here[:, None] & (slot[None, :] < k)
    tl.store(weights + at, mass.to(weights.dtype.element_ty), mask=kept)
    tl.store(chosen + at, which, mask=kept)
    tl.atomic_add(loads + expert, tl.sum(hits, axis=0).to(tl.int64), mask=expert < experts, sem="relaxed")


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, logits):
        logits = logits.contiguous()
        tokens, experts = logits.shape
        if experts > LARGEST:
            raise ValueError(f"{experts} experts do not fit into a tile of registers")
        k, wide = min(self.k, experts), max(2, triton.next_power_of_2(experts))
        weights = torch.empty(tokens, k, dtype=logits.dtype, device=logits.device)
        chosen = torch.empty(tokens, k, dtype=torch.int64, device=logits.device)
        loads = torch.zeros(experts, dtype=torch.int64, device=logits.device)
        tall = max(1, min(128, TILE // wide))
        route[(triton.cdiv(tokens, tall),)](
            logits, weights, chosen, loads, tokens, experts, k,
            TOKENS=tall, EXPERTS=wide, KEPT=max(2, triton.next_power_of_2(k)), num_warps=WARPS,
        )  # fmt: skip
        return weights, chosen, loads
