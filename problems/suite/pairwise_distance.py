"""Euclidean distances between all rows of one matrix and all rows of another, through one matrix product."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Euclidean distance of every row of x to every row of y",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"left": 128, "right": 256, "dim": 64}},
        {"name": "odd", "for": "cpu", "params": {"left": 131, "right": 257, "dim": 77}},
        {"name": "large", "for": "cpu", "params": {"left": 512, "right": 1024, "dim": 128}},
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"left": 8192, "right": 16384, "dim": 512, "dtype": "bfloat16"},
        },
        {
            "name": "retrieval_fp16",
            "for": "gpu",
            "params": {"left": 1024, "right": 200000, "dim": 128, "dtype": "float16"},
        },
        {"name": "fp32", "for": "gpu", "params": {"left": 8192, "right": 8192, "dim": 64}},
        {
            "name": "square_bf16",
            "for": "gpu",
            "params": {"left": 16384, "right": 16384, "dim": 128, "dtype": "bfloat16"},
        },
        {
            "name": "odd_bf16",
            "for": "gpu",
            "params": {"left": 4093, "right": 8179, "dim": 131, "dtype": "bfloat16"},
        },
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"left": 256, "right": 512, "dim": 128, "dtype": "bfloat16"},
        },
    ],
    "domains": {"x": "real", "y": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"mixed": "Mixed"},
}


class Model(nn.Module):
    def forward(self, x, y):
        wide = torch.promote_types(x.dtype, torch.float32)  # what cancels between close rows is lost in 16 bits
        dtype, x, y = x.dtype, x.to(wide), y.to(wide)
        squares = x.pow(2).sum(dim=1)[:, None] + y.pow(2).sum(dim=1)[None, :] - 2 * (x @ y.T)
        return squares.clamp_min(0).sqrt().to(dtype)


class Mixed(nn.Module):
    """The product by the tensor cores, from 16 bits into float32, and whatever follows in place."""

    def forward(self, x, y):
        wide = torch.promote_types(x.dtype, torch.float32)
        narrow = x.is_cuda and x.dtype is not wide  # a CPU has no such product
        product = torch.mm(x, y.T, out_dtype=wide) if narrow else x.to(wide) @ y.to(wide).T
        left, right = (torch.linalg.vector_norm(each, dim=1, dtype=wide).square_() for each in (x, y))
        squares = torch.add(left[:, None], product, alpha=-2, out=product).add_(right)
        return squares.clamp_min_(0).sqrt_().to(x.dtype)


def get_inputs(left=128, right=256, dim=64, dtype="float32"):
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in ((left, dim), (right, dim))]


def get_init_inputs():
    return []
