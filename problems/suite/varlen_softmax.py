"""Softmax over jagged rows that lie end to end in memory: attention over the neighbours of a graph's nodes."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Softmax over each row of a jagged list of scores",
    "op_family": "softmax",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 128, "total": 16384}},
        {"name": "odd", "for": "cpu", "params": {"rows": 251, "total": 50021}},
        {"name": "large", "for": "cpu", "params": {"rows": 512, "total": 262144}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 65536, "total": 67108864}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 131072, "total": 134217728, "dtype": "bfloat16"}},
        {"name": "short_fp16", "for": "gpu", "params": {"rows": 2097152, "total": 67108864, "dtype": "float16"}},
        {"name": "long_bf16", "for": "gpu", "params": {"rows": 2048, "total": 67108864, "dtype": "bfloat16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 32749, "total": 50000017}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 1024, "total": 262144, "dtype": "bfloat16"}},
    ],
    "domains": {"scores": "real", "offsets": "ascending"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"segmented": "Segmented"},
}


class Model(nn.Module):
    def forward(self, scores, offsets):
        wide = torch.promote_types(scores.dtype, torch.float32)
        rows = offsets.shape[0] - 1
        numbers = torch.arange(rows, device=scores.device)
        row = torch.repeat_interleave(numbers, offsets.diff(), output_size=scores.shape[0])
        x = scores.to(wide)
        top = x.new_full((rows,), float("-inf")).scatter_reduce(0, row, x, "amax")
        powers = torch.exp(x - top[row])
        total = x.new_zeros(rows).index_add(0, row, powers)
        return (powers / total[row]).to(scores.dtype)


class Segmented(nn.Module):
    """PyTorch's reductions of segments, in place of those by atomic additions and maxima."""

    def forward(self, scores, offsets):
        x = scores.to(torch.promote_types(scores.dtype, torch.float32))
        numbers = torch.arange(offsets.shape[0] - 1, device=scores.device)
        row = torch.repeat_interleave(numbers, offsets.diff(), output_size=scores.shape[0])
        top = torch.segment_reduce(x, "max", offsets=offsets, unsafe=True)
        powers = torch.exp(x - top[row])
        total = torch.segment_reduce(powers, "sum", offsets=offsets, unsafe=True)
        return (powers / total[row]).to(scores.dtype)


def get_inputs(rows=128, total=16384, dtype="float32"):
    weights = torch.rand(rows, dtype=torch.float64).pow(2)  # lengths from none to three times the mean
    ends = (weights.cumsum(0) / weights.sum() * total).long().clamp_(max=total)
    ends[-1:] = total
    offsets = torch.cat([ends.new_zeros(1), ends])
    return [torch.randn(total).to(getattr(torch, dtype)), offsets]


def get_init_inputs():
    return []
