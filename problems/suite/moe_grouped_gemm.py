"""The matrix products of a mixture of experts: tokens lie sorted by expert, and each goes through its expert's weights.

`ends` says where each expert's tokens end. The loads are as skewed as Zipf's law: the first expert has a good part of
all tokens, the last ones have few or none.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import torch
from torch import nn

SPEC = {
    "summary": "Each expert's tokens times its own weights, tokens sorted by expert, skewed loads",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"tokens": 64, "experts": 4, "inner": 64, "outer": 96}},
        {"name": "odd", "for": "cpu", "params": {"tokens": 127, "experts": 7, "inner": 67, "outer": 131}},
        {"name": "large", "for": "cpu", "params": {"tokens": 512, "experts": 8, "inner": 256, "outer": 512}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"tokens": 128, "experts": 64, "inner": 2048, "outer": 1408, "dtype": "bfloat16"},
        },
        {
            "name": "mixtral_bf16",
            "for": "gpu",
            "params": {"tokens": 8192, "experts": 8, "inner": 4096, "outer": 14336, "dtype": "bfloat16"},
        },
        {
            "name": "many_bf16",
            "for": "gpu",
            "params": {"tokens": 16384, "experts": 128, "inner": 2048, "outer": 1536, "dtype": "bfloat16"},
        },
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"tokens": 4093, "experts": 60, "inner": 1000, "outer": 1416, "dtype": "float16"},
        },
    ],
    "domains": {"x": "real", "weight": "real", "ends": "ascending"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"grouped_mm": "GroupedMm"},
}


class Model(nn.Module):
    def forward(self, x, weight, ends):
        ends = ends.tolist()
        starts = [0, *ends[:-1]]
        parts = [x[start:end] @ each for start, end, each in zip(starts, ends, weight, strict=True)]
        return torch.cat(parts)


class GroupedMm(Model):
    """The vendor's grouped product. On a GPU it takes bfloat16: other workloads are the reference's there."""

    def forward(self, x, weight, ends):
        if x.is_cuda and x.dtype is not torch.bfloat16:
            return super().forward(x, weight, ends)
        return torch._grouped_mm(x, weight, offs=ends.to(torch.int32))


def get_inputs(tokens=64, experts=4, inner=64, outer=96, dtype="float32", skew=1.0):
    kind = getattr(torch, dtype)
    load = torch.arange(1, experts + 1).float().pow(-skew)
    counts = torch.bincount(torch.multinomial(load, tokens, replacement=True), minlength=experts)
    x, weight = torch.randn(tokens, inner), torch.randn(experts, inner, outer) / inner**0.5
    return [x.to(kind), weight.to(kind), counts.cumsum(0)]


def get_init_inputs():
    return []
