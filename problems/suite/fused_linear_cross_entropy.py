"""A language model's head and loss as one: logits of hidden states by the vocabulary's weights, mean cross-entropy.

The logits are the largest tensor of a training step; whoever fuses never stores them all.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Linear projection to a vocabulary followed by mean cross-entropy",
    "op_family": "loss",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 64, "hidden": 64, "classes": 500, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 127, "hidden": 99, "classes": 1021, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 128, "hidden": 256, "classes": 4000, "dtype": "float32"}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"rows": 512, "hidden": 1024, "classes": 32000, "dtype": "bfloat16"},
        },
        {"name": "bf16", "for": "gpu", "params": {"rows": 4096, "hidden": 4096, "classes": 32000, "dtype": "bfloat16"}},
        {
            "name": "wide_bf16",
            "for": "gpu",
            "params": {"rows": 2048, "hidden": 2048, "classes": 128256, "dtype": "bfloat16"},
        },
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"rows": 1021, "hidden": 1000, "classes": 50257, "dtype": "float16"},
        },
    ],
    "domains": {"x": "real", "target": {"index": "classes"}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, hidden, classes, dtype="float32"):
        super().__init__()
        self.head = nn.Linear(hidden, classes, bias=False, dtype=getattr(torch, dtype))

    def forward(self, x, target):
        return F.cross_entropy(self.head(x).to(torch.promote_types(x.dtype, torch.float32)), target)


def get_inputs(rows=64, hidden=64, classes=500, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype)), torch.randint(classes, (rows,))]


def get_init_inputs(hidden=64, classes=500, dtype="float32"):
    return [hidden, classes, dtype]
