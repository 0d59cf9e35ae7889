"""The router of a mixture of experts: the k largest logits of each token, their softmax, and each expert's load.

Experts are chosen by their logits, which are inputs, so that no rounding chooses another; of equal logits the expert
with the lower number comes first.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Top-k experts of each token by logit, stable among ties, their softmax weights, and tokens per expert",
    "op_family": "softmax",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"tokens": 256, "experts": 8, "k": 2}},
        {"name": "odd", "for": "cpu", "params": {"tokens": 509, "experts": 60, "k": 4}},
        {"name": "large", "for": "cpu", "params": {"tokens": 2048, "experts": 64, "k": 8}},
        {"name": "small_fp32", "for": "gpu", "params": {"tokens": 64, "experts": 128, "k": 8}},
        {"name": "fp32", "for": "gpu", "params": {"tokens": 16384, "experts": 256, "k": 8}},
        {"name": "bf16", "for": "gpu", "params": {"tokens": 32768, "experts": 64, "k": 8, "dtype": "bfloat16"}},
        {"name": "few_bf16", "for": "gpu", "params": {"tokens": 131072, "experts": 8, "k": 2, "dtype": "bfloat16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"tokens": 8191, "experts": 60, "k": 4}},
    ],
    "domains": {"logits": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, logits):
        ordered = torch.sort(logits, dim=-1, descending=True, stable=True)
        chosen, experts = ordered.values[:, : self.k], ordered.indices[:, : self.k]
        loads = torch.zeros(logits.shape[1], dtype=torch.int64, device=logits.device)
        loads.scatter_add_(0, experts.reshape(-1), torch.ones_like(experts.reshape(-1)))
        return torch.softmax(chosen, dim=-1), experts, loads


def get_inputs(tokens=256, experts=8, dtype="float32"):
    return [torch.randn(tokens, experts).to(getattr(torch, dtype))]


def get_init_inputs(k=2):
    return [k]
