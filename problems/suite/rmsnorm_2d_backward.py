"""The backward of RMSNorm over the rows of a matrix: the gradients for its input and its weight."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Gradients of RMSNorm over the rows of a matrix with respect to its input and its weight",
    "op_family": "normalization",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 64, "hidden": 128}},
        {"name": "odd", "for": "cpu", "params": {"rows": 131, "hidden": 257}},
        {"name": "large", "for": "cpu", "params": {"rows": 512, "hidden": 512}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 1024, "hidden": 1024, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "hidden": 4096, "dtype": "bfloat16"}},
        {"name": "narrow_bf16", "for": "gpu", "params": {"rows": 32768, "hidden": 1024, "dtype": "bfloat16"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 8192, "hidden": 4096}},
        {"name": "narrow_fp32", "for": "gpu", "params": {"rows": 32768, "hidden": 1024}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "hidden": 5003}},
        {"name": "large_bf16", "for": "gpu", "params": {"rows": 32768, "hidden": 8192, "dtype": "bfloat16"}},
    ],
    "domains": {"dy": "real", "x": "real", "weight": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, x, weight):
        wide = torch.promote_types(x.dtype, torch.float32)  # whatever is stored, sums are kept in float32
        dy_wide, x_wide = dy.to(wide), x.to(wide)
        scale = torch.rsqrt(x_wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        normed = x_wide * scale
        dnormed = dy_wide * weight.to(wide)
        dx = scale * (dnormed - normed * (dnormed * normed).mean(dim=-1, keepdim=True))
        return dx.to(x.dtype), (dy_wide * normed).sum(dim=0).to(weight.dtype)


def get_inputs(rows=64, hidden=128, dtype="float32"):
    kind = getattr(torch, dtype)
    return [torch.randn(rows, hidden).to(kind), torch.randn(rows, hidden).to(kind), torch.randn(hidden).to(kind)]


def get_init_inputs():
    return [1e-6]
