"""InterFormer's personalised feed-forward layer: each sample's weight matrix is made from a summary of that sample."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Feed-forward layer with a weight matrix per sample, made from its summary, then GELU and LayerNorm",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 4, "tokens": 8, "dim": 16, "summary": 16}},
        {"name": "odd", "for": "cpu", "params": {"batch": 5, "tokens": 7, "dim": 19, "summary": 13}},
        {"name": "large", "for": "cpu", "params": {"batch": 32, "tokens": 16, "dim": 32, "summary": 32}},
        {"name": "small_bf16", "for": "gpu", "params": {"batch": 256, "dtype": "bfloat16"}},
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"batch": 1021, "tokens": 23, "dim": 96, "summary": 51, "dtype": "float16"},
        },
        {"name": "bf16", "for": "gpu", "params": {"batch": 2048, "dtype": "bfloat16"}},
        {"name": "large_bf16", "for": "gpu", "params": {"batch": 8192, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real", "summary": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, dim, summary, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.dim = dim
        self.weights = nn.Linear(summary, dim * dim, dtype=kind)
        self.norm = nn.LayerNorm(dim, dtype=kind)

    def forward(self, x, summary):
        weights = self.weights(summary).view(-1, self.dim, self.dim) * self.dim**-0.5
        return self.norm(F.gelu(torch.bmm(x, weights)))


def get_inputs(batch=4, tokens=32, dim=128, summary=64, dtype="float32"):
    kind = getattr(torch, dtype)
    return [torch.randn(batch, tokens, dim).to(kind), torch.randn(batch, summary).to(kind)]


def get_init_inputs(dim=128, summary=64, dtype="float32"):
    return [dim, summary, dtype]
