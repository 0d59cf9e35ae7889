"""The first half of a feed-forward layer: a linear layer and GELU."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Linear layer with bias, followed by GELU",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 128, "inner": 256, "outer": 512, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 257, "inner": 131, "outer": 509, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 512, "inner": 512, "outer": 1024, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "inner": 4096, "outer": 4096, "dtype": "bfloat16"}},
        {"name": "fp16", "for": "gpu", "params": {"rows": 16384, "inner": 1024, "outer": 4096, "dtype": "float16"}},
        {"name": "odd_bf16", "for": "gpu", "params": {"rows": 4093, "inner": 1021, "outer": 2039, "dtype": "bfloat16"}},
        {
            "name": "large_bf16",
            "for": "gpu",
            "params": {"rows": 16384, "inner": 8192, "outer": 8192, "dtype": "bfloat16"},
        },
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"rows": 512, "inner": 1024, "outer": 4096, "dtype": "bfloat16"},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.linear = nn.Linear(inner, outer, dtype=getattr(torch, dtype))

    def forward(self, x):
        return F.gelu(self.linear(x))


def get_inputs(rows=128, inner=256, dtype="float32"):
    return [torch.randn(rows, inner).to(getattr(torch, dtype))]


def get_init_inputs(inner=256, outer=512, dtype="float32"):
    return [inner, outer, dtype]
