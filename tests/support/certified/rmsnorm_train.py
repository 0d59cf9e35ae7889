"""RMSNorm with a weight, forward and backward."""

import torch
from torch import nn

SPEC = {
    "summary": "RMSNorm with a weight, forward and backward",
    "op_family": "normalization",
    "workloads": [
        {"name": "even", "params": {"rows": 512, "cols": 1024}},
        {"name": "odd", "params": {"rows": 509, "cols": 1531}},
    ],
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.weight


def get_inputs(rows=512, cols=1024):
    return [torch.randn(rows, cols)]


def get_init_inputs(cols=1024):
    return [cols]
