"""Rotary position embedding of queries and keys: each pair (i, i + d/2) of a head turns by its position's angle."""

# mypy: allow-untyped-defs, allow-untyped-calls

import torch
from torch import nn

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


def get_inputs(batch=1, length=64, heads=32, kv_heads=8, dim=128, dtype="float32"):
    shapes = [(batch, length, heads, dim), (batch, length, kv_heads, dim)]
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def get_init_inputs(length=64, dim=128, dtype="float32"):
    return [length, dim, 10000.0, dtype]
