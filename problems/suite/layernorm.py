"""LayerNorm over the last dimension, with weight and bias."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "LayerNorm over the last dimension, with weight and bias",
    "op_family": "normalization",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 2048, "hidden": 768, "dtype": "float32"}, "backward": False},
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "hidden": 2039, "dtype": "float32"}, "backward": False},
        {
            "name": "large",
            "for": "cpu",
            "params": {"rows": 2048, "hidden": 2048, "dtype": "float32"},
            "backward": False,
        },
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "hidden": 4096, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 32768, "hidden": 4096, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 131072, "hidden": 768, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "hidden": 5003, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "hidden": 4096, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))

    def forward(self, x):
        return self.norm(x)


def get_inputs(rows=512, hidden=768, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype))]


def get_init_inputs(hidden=768, dtype="float32"):
    return [hidden, dtype]
