"""Cumulative sum along one dimension."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Cumulative sum along the last dimension of a matrix",
    "op_family": "scan",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 512, "cols": 2048, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 509, "cols": 4093, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 1024, "cols": 4096, "dtype": "float32"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "cols": 4096, "dtype": "float32"}},
        {"name": "long_fp32", "for": "gpu", "params": {"rows": 1024, "cols": 65536, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 32768, "cols": 4096, "dtype": "bfloat16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "cols": 5003, "dtype": "float32"}},
        {"name": "large_bf16", "for": "gpu", "params": {"rows": 16384, "cols": 16384, "dtype": "bfloat16"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 256, "cols": 2048, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.cumsum(x, dim=self.dim)


def get_inputs(rows=256, cols=1024, dtype="float32"):
    return [torch.randn(rows, cols).to(getattr(torch, dtype))]


def get_init_inputs():
    return [-1]
