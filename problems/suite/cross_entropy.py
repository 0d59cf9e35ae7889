"""Cross-entropy of logits against class indices, averaged over the rows: a language model's loss."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Mean cross-entropy of logits against class indices",
    "op_family": "loss",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 1024, "classes": 1000, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "classes": 2039, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 256, "classes": 32000, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "classes": 32000, "dtype": "bfloat16"}},
        {"name": "wide_bf16", "for": "gpu", "params": {"rows": 2048, "classes": 128256, "dtype": "bfloat16"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 4096, "classes": 32000, "dtype": "float32"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 2039, "classes": 50257, "dtype": "float32"}},
    ],
    "domains": {"logits": "real", "target": {"index": "classes"}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def forward(self, logits, target):
        return F.cross_entropy(logits, target)


def get_inputs(rows=256, classes=1000, dtype="float32"):
    return [torch.randn(rows, classes).to(getattr(torch, dtype)), torch.randint(classes, (rows,))]


def get_init_inputs():
    return []
