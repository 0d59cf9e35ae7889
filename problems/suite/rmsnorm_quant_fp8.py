"""RMSNorm and its quantisation to 8-bit floats (e4m3), with a scale for each row that maps its largest value to 448."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "RMSNorm with a weight, quantised to 8-bit floats with a scale for each row",
    "op_family": "normalization",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 256, "hidden": 256, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 509, "hidden": 517, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 1024, "hidden": 1024, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 64, "hidden": 4096, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 16384, "hidden": 4096, "dtype": "bfloat16"}},
        {"name": "wide_fp16", "for": "gpu", "params": {"rows": 8192, "hidden": 8192, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "hidden": 5003, "dtype": "float32"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps

    def forward(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        x = x.to(wide)
        y = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight.to(wide)
        scale = y.abs().amax(dim=-1, keepdim=True).clamp_min(1e-6) / 448.0
        return (y / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def get_inputs(rows=256, hidden=256, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype))]


def get_init_inputs(hidden=256, dtype="float32"):
    return [hidden, 1e-6, dtype]
