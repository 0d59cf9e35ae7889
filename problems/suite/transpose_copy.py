"""Matrices turned into contiguous transposed ones: a change of layout between two kernels."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Contiguous copy of a batch of matrices with its last two dimensions swapped",
    "op_family": "movement",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "rows": 512, "cols": 768, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "rows": 509, "cols": 1021, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"batch": 1, "rows": 2048, "cols": 2048, "dtype": "float32"}},
        {"name": "fp32", "for": "gpu", "params": {"batch": 1, "rows": 16384, "cols": 8192, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"batch": 1, "rows": 16384, "cols": 16384, "dtype": "bfloat16"}},
        {"name": "heads_fp16", "for": "gpu", "params": {"batch": 512, "rows": 4096, "cols": 128, "dtype": "float16"}},
        {"name": "nchw_fp16", "for": "gpu", "params": {"batch": 256, "rows": 256, "cols": 3136, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"batch": 1, "rows": 8191, "cols": 12289, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"batch": 1, "rows": 1024, "cols": 768, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def forward(self, x):
        return x.transpose(-2, -1).contiguous()


def get_inputs(batch=1, rows=512, cols=768, dtype="float32"):
    return [torch.randn(batch, rows, cols).to(getattr(torch, dtype))]


def get_init_inputs():
    return []
