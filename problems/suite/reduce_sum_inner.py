"""Sums along the contiguous dimension of a matrix: one number a row."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Row reduction, tree of partial sums: Sum along the last, contiguous dimension of a matrix",
    "op_family": "reduction",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 512, "cols": 2048, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 509, "cols": 4093, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 2048, "cols": 4096, "dtype": "float32"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "cols": 8192, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 32768, "cols": 8192, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 1048576, "cols": 256, "dtype": "float16"}},
        {"name": "long_fp32", "for": "gpu", "params": {"rows": 64, "cols": 2097152, "dtype": "float32"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "cols": 16381, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 1024, "cols": 1024, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=-1)


def get_inputs(rows=256, cols=1024, dtype="float32"):
    return [torch.randn(rows, cols).to(getattr(torch, dtype))]


def get_init_inputs():
    return []
