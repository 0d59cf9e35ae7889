"""The k largest of each row with their places; of equal values the first comes first, so that one answer is right.

torch.topk leaves the order of equal values open: a stable sort does not. In 16 bits most rows have ties.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Values and indices of the k largest elements of each row, ties by the smaller index",
    "op_family": "topk",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 32, "cols": 1024, "k": 8, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 29, "cols": 2039, "k": 17, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 16, "cols": 8192, "k": 50, "dtype": "bfloat16"}},
        {"name": "router_fp32", "for": "gpu", "params": {"rows": 131072, "cols": 256, "k": 8, "dtype": "float32"}},
        {"name": "vocab_bf16", "for": "gpu", "params": {"rows": 1024, "cols": 128256, "k": 50, "dtype": "bfloat16"}},
        {"name": "beam_fp32", "for": "gpu", "params": {"rows": 2048, "cols": 32000, "k": 8, "dtype": "float32"}},
        {"name": "retrieval_fp32", "for": "gpu", "params": {"rows": 64, "cols": 1048576, "k": 100, "dtype": "float32"}},
        {"name": "odd_fp16", "for": "gpu", "params": {"rows": 1021, "cols": 50257, "k": 17, "dtype": "float16"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 64, "cols": 4096, "k": 4, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        values, places = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[:, : self.k].contiguous(), places[:, : self.k].contiguous()


def get_inputs(rows=64, cols=1024, dtype="float32"):
    return [torch.randn(rows, cols).to(getattr(torch, dtype))]


def get_init_inputs(k=8):
    return [k]
