"""The gate of a Llama feed-forward layer: SiLU of one projection times the other."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "SiLU of the gate times the other projection",
    "op_family": "pointwise",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 256, "hidden": 512, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 509, "hidden": 1031, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 1024, "hidden": 2048, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 256, "hidden": 11008, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "hidden": 14336, "dtype": "bfloat16"}},
        {"name": "fp16", "for": "gpu", "params": {"rows": 4096, "hidden": 11008, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 4093, "hidden": 5003, "dtype": "float32"}},
    ],
    "domains": {"gate": "real", "up": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def forward(self, gate, up):
        return F.silu(gate) * up


def get_inputs(rows=256, hidden=512, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype)) for _ in range(2)]


def get_init_inputs():
    return []
