"""Softmax over the last dimension."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Softmax over the last dimension of a matrix",
    "op_family": "softmax",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 1024, "cols": 1024, "dtype": "float32"}, "backward": False},
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "cols": 2039, "dtype": "float32"}, "backward": False},
        {"name": "large", "for": "cpu", "params": {"rows": 1024, "cols": 4096, "dtype": "float32"}, "backward": False},
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "cols": 4096, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 32768, "cols": 4096, "dtype": "bfloat16"}},
        {"name": "wide_fp16", "for": "gpu", "params": {"rows": 2048, "cols": 65536, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "cols": 5003, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "cols": 2048, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs(rows=512, cols=512, dtype="float32"):
    return [torch.randn(rows, cols).to(getattr(torch, dtype))]


def get_init_inputs():
    return []
