"""One program turns all heads of a token, queries and keys, and reads its angles once; backward is the same kernel
with the angle's sign changed. Bound by memory: 4 tensors of traffic, forward and backward.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"WARPS": [1, 2, 4, 8], "TOKENS": [1, 2, 4]}
WARPS = 4
TOKENS = 1


@triton.jit
def turn(
    start_q, start_k, cos, sin, out_q, out_k, tokens, length, heads, kv_heads, half, sign,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if sign < 0:  # backward: the tokens that forward wrote last are in the L2 cache
        program = tl.num_programs(0) - 1 - program
    col = tl.arange(0, HALF)
    for step in tl.static_range(TOKENS):
        token = program * TOKENS + step
        here = token < tokens
        angle = (token % length) * half + col
        c = tl.load(cos + angle, mask=here & (col < half), other=0.0).to(tl.float32)[None, :]
        s = tl.load(sin + angle, mask=here & (col < half), other=0.0).to(tl.float32)[None, :] * sign
        head = tl.arange(0, HEADS)
        inside = here & (head[:, None] < heads) & (col[None, :] < half)
        at = (token.to(tl.int64) * heads + head[:, None]) * (2 * half) + col[None, :]
        first = tl.load(start_q + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(start_q + at + half, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_q + at, (first * c - second * s).to(out_q.dtype.element_ty), mask=inside)
        tl.store(out_q + at + half, (second * c + first * s).to(out_q.dtype.element_ty), mask=inside)
        head = tl.arange(0, KV_HEADS)
        inside = here & (head[:, None] < kv_heads) & (col[None, :] < half)
        at = (token.to(tl.int64) * kv_heads + head[:, None]) * (2 * half) + col[None, :]
        first = tl.load(start_k + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(start_k + at + half, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_k + at, (first * c - second * s).to(out_k.dtype.element_ty), mask=inside)
        tl.store(out_k + at + half, (second * c + first * s).to(out_k.dtype.element_ty), mask=inside)


def turned(q, k, cos, sin, sign):
    q, k = q.contiguous(), k.contiguous()
    batch, length, heads, dim = q.shape
    out_q, out_k, tokens = torch.empty_like(q), torch.empty_like(k), batch * length
    turn[(triton.cdiv(tokens, TOKENS),)](
        q, k, cos, sin, out_q, out_k, tokens, length, heads, k.shape[2], dim // 2, sign,
        HEADS=triton.next_power_of_2(heads), KV_HEADS=triton.next_power_of_2(k.shape[2]),
        HALF=triton.next_power_of_2(dim // 2), TOKENS=TOKENS, num_warps=WARPS,
    )  # fmt: skip
    return out_q, out_k


class Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return turned(q, k, cos, sin, 1.0)

    @staticmethod
    def backward(ctx, dq, dk):
        return *turned(dq, dk, *ctx.saved_tensors, -1.0), None, None


class ModelNew(nn.Module):
    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def forward(self, q, k):
        return Turn.apply(q, k, self.cos.contiguous(), self.sin.contiguous())
