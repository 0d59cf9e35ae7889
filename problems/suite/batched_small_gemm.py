"""Products of very many very small matrices: the blocks of a block-diagonal or finite-element system."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Batched product of small matrices, 4x4 to 32x32",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 2048, "m": 4, "n": 4, "k": 4, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"batch": 509, "m": 7, "n": 13, "k": 11, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"batch": 2048, "m": 16, "n": 16, "k": 16, "dtype": "float32"}},
        {"name": "4x4_fp32", "for": "gpu", "params": {"batch": 4194304, "m": 4, "n": 4, "k": 4, "dtype": "float32"}},
        {"name": "8x8_fp32", "for": "gpu", "params": {"batch": 1048576, "m": 8, "n": 8, "k": 8, "dtype": "float32"}},
        {
            "name": "16x16_fp16",
            "for": "gpu",
            "params": {"batch": 524288, "m": 16, "n": 16, "k": 16, "dtype": "float16"},
        },
        {
            "name": "32x32_bf16",
            "for": "gpu",
            "params": {"batch": 131072, "m": 32, "n": 32, "k": 32, "dtype": "bfloat16"},
        },
        {"name": "32x32_fp32", "for": "gpu", "params": {"batch": 65536, "m": 32, "n": 32, "k": 32, "dtype": "float32"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"batch": 262139, "m": 7, "n": 13, "k": 11, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"batch": 1024, "m": 16, "n": 16, "k": 16, "dtype": "bfloat16"}},
    ],
    "domains": {"a": "real", "b": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs(batch=1024, m=16, n=16, k=16, dtype="float32"):
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in ((batch, m, k), (batch, k, n))]


def get_init_inputs():
    return []
