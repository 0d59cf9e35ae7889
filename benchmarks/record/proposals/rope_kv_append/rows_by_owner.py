"""Every row of the caches has one program: it copies the row, or writes what the row's token brings; so nothing is
written twice, and queries turn in the same launch. Bound by memory: the caches are copied, as the operator returns new
ones.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"WARPS": [1, 2, 4, 8]}
WARPS = 4


@triton.jit
def mark(slots, owner, tokens, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + token, mask=token < tokens, other=0)
    tl.store(owner + slot, token, mask=token < tokens)


@triton.jit
def turn(source, cos, sin, out, at, angle, inside, usable, half):
    c = tl.load(cos + angle, mask=usable, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + angle, mask=usable, other=0.0).to(tl.float32)[None, :]
    first = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + at + half, mask=inside, other=0.0).to(tl.float32)
    return (first * c - second * s).to(out.dtype.element_ty), (second * c + first * s).to(out.dtype.element_ty)


@triton.jit
def turn_queries(q, cos, sin, positions, out_q, token, heads, half, HEADS: tl.constexpr, HALF: tl.constexpr):
    head, col = tl.arange(0, HEADS), tl.arange(0, HALF)
    inside = (head[:, None] < heads) & (col[None, :] < half)
    at = (token.to(tl.int64) * heads + head[:, None]) * (2 * half) + col[None, :]
    angle = tl.load(positions + token) * half + col
    first, second = turn(q, cos, sin, out_q, at, angle, inside, col < half, half)
    tl.store(out_q + at, first, mask=inside)
    tl.store(out_q + at + half, second, mask=inside)


@triton.jit
def fill_slot(
    k, v, keys, values, cos, sin, positions, owner, out_k, out_v, slot, kv_heads, half,
    KV_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    head, col = tl.arange(0, KV_HEADS), tl.arange(0, HALF)
    inside = (head[:, None] < kv_heads) & (col[None, :] < half)
    local = head[:, None] * (2 * half) + col[None, :]
    to = slot.to(tl.int64) * kv_heads * (2 * half) + local
    token = tl.load(owner + slot).to(tl.int64)
    if token >= 0:
        at = token * kv_heads * (2 * half) + local
        angle = tl.load(positions + token) * half + col
        first, second = turn(k, cos, sin, out_k, at, angle, inside, col < half, half)
        tl.store(out_k + to, first, mask=inside)
        tl.store(out_k + to + half, second, mask=inside)
        tl.store(out_v + to, tl.load(v + at, mask=inside, other=0.0), mask=inside)
        tl.store(out_v + to + half, tl.load(v + at + half, mask=inside, other=0.0), mask=inside)
    else:
        tl.store(out_k + to, tl.load(keys + to, mask=inside, other=0.0), mask=inside)
        tl.store(out_k + to + half, tl.load(keys + to + half, mask=inside, other=0.0), mask=inside)
        tl.store(out_v + to, tl.load(values + to, mask=inside, other=0.0), mask=inside)
        tl.store(out_v + to + half, tl.load(values + to + half, mask=inside, other=0.0), mask=inside)


@triton.jit
def append(
    q, k, v, keys, values, cos, sin, positions, owner, out_q, out_k, out_v, tokens, heads, kv_heads, half,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < tokens:
        turn_queries(q, cos, sin, positions, out_q, program, heads, half, HEADS, HALF)
    else:
        slot = program - tokens
        fill_slot(k, v, keys, values, cos, sin, positions, owner, out_k, out_v, slot, kv_heads, half, KV_HEADS, HALF)


class ModelNew(nn.Module):
    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def forward(self, q, k, v, key_cache, value_cache, positions, slots):
        q, k, v, keys, values = (each.contiguous() for each in (q, k, v, key_cache, value_cache))
        tokens, heads, dim = q.shape
        kv_heads, count = k.shape[1], keys.shape[0]
        outs = [torch.empty_like(each) for each in (q, keys, values)]
        owner = torch.full((count,), -1, dtype=torch.int32, device=q.device)
        mark[(triton.cdiv(tokens, 256),)](slots, owner, tokens, BLOCK=256, num_warps=4)
        append[(tokens + count,)](
            q, k, v, keys, values, self.cos, self.sin, positions, owner, *outs, tokens, heads, kv_heads,
            dim // 2, HEADS=triton.next_power_of_2(heads), KV_HEADS=triton.next_power_of_2(kv_heads),
            HALF=triton.next_power_of_2(dim // 2), num_warps=WARPS,
        )  # fmt: skip
        return tuple(outs)
