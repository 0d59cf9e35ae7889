"""The second half of a Llama block: attention over projected heads, the residual, RMSNorm, and the SwiGLU layer."""

# mypy: allow-untyped-defs

import math

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Causal attention with grouped heads, residual, RMSNorm and SwiGLU feed-forward of a Llama block",
    "op_family": "attention",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"batch": 1, "heads": 2, "kv_heads": 1, "length": 32, "dim": 16, "hidden": 64},
        },
        {
            "name": "odd",
            "for": "cpu",
            "params": {"batch": 2, "heads": 3, "kv_heads": 1, "length": 37, "dim": 16, "hidden": 131},
        },
        {
            "name": "large",
            "for": "cpu",
            "params": {"batch": 1, "heads": 4, "kv_heads": 2, "length": 96, "dim": 32, "hidden": 352},
        },
        {"name": "short_bf16", "for": "gpu", "params": {"length": 256, "dtype": "bfloat16"}},
        {"name": "odd_fp16", "for": "gpu", "params": {"length": 509, "hidden": 11008, "dtype": "float16"}},
        {"name": "bf16", "for": "gpu", "params": {"length": 1024, "dtype": "bfloat16"}},
        {"name": "long_bf16", "for": "gpu", "params": {"length": 4096, "dtype": "bfloat16"}},
    ],
    "domains": {"q": "real", "k": "real", "v": "real", "x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"sdpa": "Sdpa"},
}


class Model(nn.Module):
    def __init__(self, heads, dim, hidden, dtype="float32", eps=1e-5):
        super().__init__()
        width, kind = heads * dim, getattr(torch, dtype)
        self.eps = eps
        self.norm = nn.Parameter(torch.ones(width, dtype=kind))
        self.gate = nn.Linear(width, hidden, bias=False, dtype=kind)
        self.up = nn.Linear(width, hidden, bias=False, dtype=kind)
        self.down = nn.Linear(hidden, width, bias=False, dtype=kind)

    def forward(self, q, k, v, x):
        groups, length = q.shape[1] // k.shape[1], q.shape[2]
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        attended = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v
        x = x + attended.transpose(1, 2).flatten(2)
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.norm
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Sdpa(Model):
    """PyTorch's fused attention and its RMSNorm in place of the written-out ones."""

    def forward(self, q, k, v, x):
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + attended.transpose(1, 2).flatten(2)
        normed = F.rms_norm(x, self.norm.shape, self.norm, self.eps)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def get_inputs(batch=1, heads=32, kv_heads=8, length=128, dim=128, dtype="float32"):
    kind = getattr(torch, dtype)
    shapes = [(batch, heads, length, dim), (batch, kv_heads, length, dim), (batch, kv_heads, length, dim)]
    q, k, v = (torch.randn(shape).to(kind) for shape in shapes)
    return [q, k, v, torch.randn(batch, length, heads * dim).to(kind)]


def get_init_inputs(heads=32, dim=128, hidden=14336, dtype="float32"):
    return [heads, dim, hidden, dtype]
