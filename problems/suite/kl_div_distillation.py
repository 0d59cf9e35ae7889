"""The loss of distillation: KL divergence of the student's distribution from the teacher's, both softened by 2."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Mean KL divergence of the softened student's logits from the teacher's, as in distillation",
    "op_family": "loss",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 128, "classes": 500, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 127, "classes": 1021, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 64, "classes": 16000, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "classes": 32000, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 4096, "classes": 32000, "dtype": "bfloat16"}},
        {"name": "wide_bf16", "for": "gpu", "params": {"rows": 1024, "classes": 128256, "dtype": "bfloat16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 1021, "classes": 50257, "dtype": "float32"}},
    ],
    "domains": {"student": "real", "teacher": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, temperature=2.0):
        super().__init__()
        self.temperature = temperature

    def forward(self, student, teacher):
        wanted = torch.softmax(teacher.detach() / self.temperature, dim=-1)
        found = torch.log_softmax(student / self.temperature, dim=-1)
        return F.kl_div(found, wanted, reduction="batchmean") * self.temperature**2


def get_inputs(rows=128, classes=500, dtype="float32"):
    return [torch.randn(rows, classes).to(getattr(torch, dtype)) for _ in range(2)]


def get_init_inputs():
    return [2.0]
