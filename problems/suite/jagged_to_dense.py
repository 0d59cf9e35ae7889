"""Rows of uneven length as one padded tensor: what is shorter is filled with zeros, what is longer is cut off."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Jagged rows of vectors padded or truncated to a dense tensor",
    "op_family": "movement",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 64, "total": 2048, "dim": 64, "length": 48}},
        {"name": "odd", "for": "cpu", "params": {"batch": 61, "total": 5003, "dim": 37, "length": 101}},
        {"name": "large", "for": "cpu", "params": {"batch": 128, "total": 16384, "dim": 64, "length": 200}},
        {"name": "fp32", "for": "gpu", "params": {"batch": 4096, "total": 819200, "dim": 128, "length": 256}},
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"batch": 8192, "total": 1638400, "dim": 128, "length": 256, "dtype": "bfloat16"},
        },
        {
            "name": "narrow_fp16",
            "for": "gpu",
            "params": {"batch": 65536, "total": 13107200, "dim": 8, "length": 512, "dtype": "float16"},
        },
        {
            "name": "sparse_bf16",
            "for": "gpu",
            "params": {"batch": 2048, "total": 131072, "dim": 256, "length": 512, "dtype": "bfloat16"},
        },
        {"name": "odd_fp32", "for": "gpu", "params": {"batch": 4093, "total": 700001, "dim": 77, "length": 251}},
        {"name": "small_gpu", "for": "gpu", "params": {"batch": 128, "total": 16384, "dim": 64, "length": 200}},
    ],
    "domains": {"values": "real", "offsets": "ascending"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"padded": "Padded"},
}


class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, values, offsets):
        place = torch.arange(self.length, device=values.device)
        index = offsets[:-1, None] + place
        inside = index < offsets[1:, None]
        rows = values[index.clamp(max=values.shape[0] - 1)]
        return rows.masked_fill(~inside[:, :, None], 0)


class Padded(Model):
    """PyTorch's own, which its nested tensors are padded by."""

    def forward(self, values, offsets):
        return torch.ops.aten._jagged_to_padded_dense_forward(values, [offsets], [self.length])


def get_inputs(batch=64, total=2048, dim=64, dtype="float32"):
    weights = torch.rand(batch).pow(2)  # lengths from none to three times the mean
    ends = (weights.cumsum(0) / weights.sum() * total).long().clamp_(max=total)
    offsets = torch.cat([ends.new_zeros(1), ends])
    return [torch.randn(total, dim).to(getattr(torch, dtype)), offsets]


def get_init_inputs(length=48):
    return [length]
