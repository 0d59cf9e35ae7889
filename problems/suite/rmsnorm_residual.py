"""The joint of a transformer block: add the residual stream, then RMSNorm."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Residual addition followed by RMSNorm with a weight",
    "op_family": "normalization",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"rows": 1024, "hidden": 1024, "dtype": "float32"},
            "backward": False,
        },
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "hidden": 1531, "dtype": "float32"}, "backward": False},
        {
            "name": "large",
            "for": "cpu",
            "params": {"rows": 1024, "hidden": 2048, "dtype": "float32"},
            "backward": False,
        },
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "hidden": 4096, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 16384, "hidden": 8192, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 65536, "hidden": 1024, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "hidden": 5003, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "hidden": 4096, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real", "residual": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps

    def forward(self, x, residual):
        h = x + residual
        return h * torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight


def get_inputs(rows=512, hidden=768, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype)) for _ in range(2)]


def get_init_inputs(hidden=768, dtype="float32"):
    return [hidden, 1e-6, dtype]
