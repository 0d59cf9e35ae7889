"""Cross-entropy of logits against class indices, averaged over rows that are not ignored: a language model's loss."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Mean cross-entropy of logits against class indices",
    "op_family": "loss",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"rows": 1024, "classes": 1000, "dtype": "float32"},
            "backward": False,
        },
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "classes": 2039, "dtype": "float32"}, "backward": False},
        {
            "name": "large",
            "for": "cpu",
            "params": {"rows": 256, "classes": 32000, "dtype": "float32"},
            "backward": False,
        },
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "classes": 32000, "dtype": "bfloat16"}},
        {"name": "wide_bf16", "for": "gpu", "params": {"rows": 2048, "classes": 128256, "dtype": "bfloat16"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 4096, "classes": 32000, "dtype": "float32"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 2039, "classes": 50257, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "classes": 32000, "dtype": "bfloat16"}},
        {
            "name": "smoothed_bf16",
            "for": "gpu",
            "params": {"rows": 4096, "classes": 32000, "smoothing": 0.1, "ignored": 0.2, "dtype": "bfloat16"},
        },
    ],
    "domains": {"logits": "real", "target": {"index": "classes"}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, smoothing=0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        return F.cross_entropy(logits, target, ignore_index=-100, label_smoothing=self.smoothing)


def get_inputs(rows=256, classes=1000, ignored=0.0, dtype="float32"):
    target = torch.randint(classes, (rows,))
    if ignored:  # such as padding and prompts, which are not learned
        target = torch.where(torch.rand(rows) < ignored, -100, target)
    return [torch.randn(rows, classes).to(getattr(torch, dtype)), target]


def get_init_inputs(smoothing=0.0):
    return [smoothing]
