"""A linear layer for a handful of rows: the decode step of a language model, which reads each weight once."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Linear layer for 1 to 16 rows",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 1, "inner": 1024, "outer": 1024, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 3, "inner": 1021, "outer": 1531, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 4, "inner": 2048, "outer": 4096, "dtype": "float32"}},
        {"name": "m1_bf16", "for": "gpu", "params": {"rows": 1, "inner": 8192, "outer": 28672, "dtype": "bfloat16"}},
        {"name": "m4_bf16", "for": "gpu", "params": {"rows": 4, "inner": 14336, "outer": 4096, "dtype": "bfloat16"}},
        {"name": "m16_bf16", "for": "gpu", "params": {"rows": 16, "inner": 8192, "outer": 28672, "dtype": "bfloat16"}},
        {"name": "m1_fp32", "for": "gpu", "params": {"rows": 1, "inner": 8192, "outer": 8192, "dtype": "float32"}},
        {"name": "odd_fp16", "for": "gpu", "params": {"rows": 3, "inner": 8179, "outer": 11003, "dtype": "float16"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 1, "inner": 2048, "outer": 2048, "dtype": "bfloat16"}},
        {
            "name": "vocab_bf16",
            "for": "gpu",
            "params": {"rows": 1, "inner": 4096, "outer": 128256, "dtype": "bfloat16"},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.linear = nn.Linear(inner, outer, bias=False, dtype=getattr(torch, dtype))

    def forward(self, x):
        return self.linear(x)


def get_inputs(rows=1, inner=1024, dtype="float32"):
    return [torch.randn(rows, inner).to(getattr(torch, dtype))]


def get_init_inputs(inner=1024, outer=1024, dtype="float32"):
    return [inner, outer, dtype]
