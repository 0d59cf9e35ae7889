"""Rotary position embedding of queries and keys: each pair (i, i + d/2) of a head turns by its position's angle."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
from torch import nn

try:
    import triton
    import triton.language as tl
except ImportError:  # then `Liger` is no baseline here; nothing else needs it
    triton = None

SPEC = {
    "summary": "Rotary position embedding of queries and keys, halves as pairs, grouped key heads",
    "op_family": "pointwise",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "length": 64, "heads": 4, "kv_heads": 2, "dim": 64}},
        {"name": "odd", "for": "cpu", "params": {"batch": 2, "length": 131, "heads": 3, "kv_heads": 1, "dim": 96}},
        {"name": "large", "for": "cpu", "params": {"batch": 1, "length": 512, "heads": 16, "kv_heads": 4, "dim": 128}},
        {"name": "small_bf16", "for": "gpu", "params": {"batch": 1, "length": 512, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"batch": 4, "length": 2048, "dtype": "bfloat16"}},
        {"name": "long_bf16", "for": "gpu", "params": {"batch": 1, "length": 32768, "dtype": "bfloat16"}},
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"batch": 3, "length": 2039, "heads": 25, "kv_heads": 5, "dim": 96, "dtype": "float16"},
        },
        {"name": "fp32", "for": "gpu", "params": {"batch": 2, "length": 2048, "dtype": "float32"}},
    ],
    "domains": {"q": "real", "k": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
    "library": {"liger": "Liger"},
}


class Model(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def rotate(self, x):
        cos, sin = self.cos[None, : x.shape[1], None], self.sin[None, : x.shape[1], None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def forward(self, q, k):
        return self.rotate(q), self.rotate(k)


class Liger(Model):
    """What libraries of fused Triton kernels for training do: one launch for queries and keys, a program a token."""

    def forward(self, q, k):
        return FusedRotation.apply(q, k, self.cos, self.sin)


class FusedRotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return rotated(q, k, cos, sin, back=False)

    @staticmethod
    def backward(ctx, dq, dk):
        return *rotated(dq, dk, *ctx.saved_tensors, back=True), None, None


def get_inputs(batch=1, length=64, heads=32, kv_heads=8, dim=128, dtype="float32"):
    shapes = [(batch, length, heads, dim), (batch, length, kv_heads, dim)]
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def get_init_inputs(length=64, dim=128, dtype="float32"):
    return [length, dim, 10000.0, dtype]


def rotated(q, k, cos, sin, *, back):
    """Queries and keys turned by their places' angles, or back. Raises RuntimeError."""
    if triton is None or not (q.is_cuda or triton.knobs.runtime.interpret):
        raise RuntimeError("Triton's kernels need Triton and a GPU")
    q, k = q.contiguous(), k.contiguous()
    (batch, length, heads, dim), kv_heads = q.shape, k.shape[2]
    out = torch.empty_like(q), torch.empty_like(k)
    blocks = [triton.next_power_of_2(size) for size in (heads, kv_heads, dim // 2)]
    rotation[(batch * length,)](q, k, *out, cos, sin, length, heads, kv_heads, dim // 2, back, *blocks, num_warps=4)
    return out


if triton is not None:

    @triton.jit
    def rotate_heads(x, out, cos, sin, heads, half, HEADS: tl.constexpr, HALF: tl.constexpr):
        head, at = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
        inside = (head < heads) & (at < half)
        here = tl.program_id(0).to(tl.int64) * heads * half * 2 + head * half * 2 + at
        first = tl.load(x + here, inside, 0.0).to(tl.float32)
        second = tl.load(x + here + half, inside, 0.0).to(tl.float32)
        tl.store(out + here, first * cos - second * sin, inside)
        tl.store(out + here + half, second * cos + first * sin, inside)

    @triton.jit
    def rotation(
        q, k, q_out, k_out, cos, sin, length, heads, kv_heads, half,
        BACK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    ):  # fmt: skip
        at = tl.arange(0, HALF)[None, :]
        angle = tl.program_id(0) % length * half + at
        c = tl.load(cos + angle, at < half, 0.0).to(tl.float32)
        s = tl.load(sin + angle, at < half, 0.0).to(tl.float32)
        s = -s if BACK else s
        rotate_heads(q, q_out, c, s, heads, half, HEADS, HALF)
        rotate_heads(k, k_out, c, s, kv_heads, half, KV_HEADS, HALF)
