"""A linear layer of 4-bit integer weights: two to a byte, a scale for each group of 128, activations in 16 bits.

Of each byte the low half is the even input's weight, the high half the odd one's; 8 stands for zero.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Activations times 4-bit weights, two to a byte, with a scale for each group of inputs",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 16, "inner": 128, "outer": 64, "group": 32}},
        {"name": "odd", "for": "cpu", "params": {"rows": 33, "inner": 192, "outer": 131, "group": 64}},
        {"name": "large", "for": "cpu", "params": {"rows": 64, "inner": 1024, "outer": 1024}},
        {"name": "one_bf16", "for": "gpu", "params": {"rows": 1, "inner": 4096, "outer": 14336, "dtype": "bfloat16"}},
        {"name": "few_bf16", "for": "gpu", "params": {"rows": 16, "inner": 4096, "outer": 14336, "dtype": "bfloat16"}},
        {"name": "batch_fp16", "for": "gpu", "params": {"rows": 128, "inner": 8192, "outer": 8192, "dtype": "float16"}},
        {
            "name": "prompt_bf16",
            "for": "gpu",
            "params": {"rows": 2048, "inner": 4096, "outer": 14336, "dtype": "bfloat16"},
        },
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"rows": 61, "inner": 2880, "outer": 5003, "group": 64, "dtype": "float16"},
        },
    ],
    "domains": {"x": "real", "packed": {"index": 256}, "scales": "positive"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def forward(self, x, packed, scales):
        quads = torch.stack((packed & 15, packed >> 4), dim=1).flatten(0, 1)  # [inner, outer]
        group = quads.shape[0] // scales.shape[0]
        weight = (quads.to(x.dtype) - 8) * scales.repeat_interleave(group, dim=0)
        return x @ weight


def get_inputs(rows=16, inner=128, outer=64, group=128, dtype="float32"):
    kind = getattr(torch, dtype)
    packed = torch.randint(256, (inner // 2, outer)).to(torch.uint8)
    scales = (torch.rand(inner // group, outer) + 0.5) / inner**0.5
    return [torch.randn(rows, inner).to(kind), packed, scales.to(kind)]


def get_init_inputs():
    return []
