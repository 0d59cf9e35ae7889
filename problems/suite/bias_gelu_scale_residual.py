"""The pointwise tail of a transformer's feed-forward layer: bias, GELU, a learned scale, the residual."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "GELU of x plus bias, times a learned scale, plus the residual",
    "op_family": "pointwise",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 1024, "hidden": 768, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "hidden": 1531, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 2048, "hidden": 2048, "dtype": "float32"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "hidden": 4096, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 32768, "hidden": 4096, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 131072, "hidden": 1024, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "hidden": 5003, "dtype": "float32"}},
        {"name": "large_bf16", "for": "gpu", "params": {"rows": 28672, "hidden": 8192, "dtype": "bfloat16"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "hidden": 4096, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real", "residual": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden, dtype=getattr(torch, dtype)))
        self.scale = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))

    def forward(self, x, residual):
        return F.gelu(x + self.bias) * self.scale + residual


def get_inputs(rows=256, hidden=768, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype)) for _ in range(2)]


def get_init_inputs(hidden=768, dtype="float32"):
    return [hidden, dtype]
