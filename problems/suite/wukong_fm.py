"""Wukong's optimised factorization machine: X (X^T Y) with a learned projection Y, flattened, LayerNorm, and an MLP."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Factorization machine X (X^T Y) with a learned Y, flattened, through LayerNorm and a two-layer MLP",
    "op_family": "matmul",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"batch": 4, "fields": 16, "dim": 16, "rank": 4, "hidden": 32, "outputs": 2},
        },
        {
            "name": "odd",
            "for": "cpu",
            "params": {"batch": 7, "fields": 13, "dim": 19, "rank": 5, "hidden": 29, "outputs": 3},
        },
        {
            "name": "large",
            "for": "cpu",
            "params": {"batch": 32, "fields": 32, "dim": 64, "rank": 8, "hidden": 64, "outputs": 2},
        },
        {"name": "small_bf16", "for": "gpu", "params": {"batch": 256, "dtype": "bfloat16"}},
        {"name": "odd_fp16", "for": "gpu", "params": {"batch": 1021, "fields": 47, "dim": 96, "dtype": "float16"}},
        {"name": "bf16", "for": "gpu", "params": {"batch": 2048, "dtype": "bfloat16"}},
        {"name": "large_bf16", "for": "gpu", "params": {"batch": 16384, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, fields, dim, rank, hidden, outputs, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.outputs, self.dim = outputs, dim
        self.projection = nn.Parameter((torch.randn(fields, rank) * fields**-0.5).to(kind))
        self.norm = nn.LayerNorm(fields * rank, dtype=kind)
        self.first = nn.Linear(fields * rank, hidden, dtype=kind)
        self.second = nn.Linear(hidden, outputs * dim, dtype=kind)

    def forward(self, x):
        interactions = x @ (x.transpose(1, 2) @ self.projection)
        hidden = F.gelu(self.first(self.norm(interactions.flatten(1))))
        return self.second(hidden).view(-1, self.outputs, self.dim)


def get_inputs(batch=4, fields=64, dim=128, dtype="float32"):
    return [torch.randn(batch, fields, dim).to(getattr(torch, dtype))]


def get_init_inputs(fields=64, dim=128, rank=16, hidden=512, outputs=8, dtype="float32"):
    return [fields, dim, rank, hidden, outputs, dtype]
