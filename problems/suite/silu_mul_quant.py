"""The gate of a feed-forward layer and its quantisation to 8-bit floats (e4m3), with a scale for each 128 of a row."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "SiLU of the first half of each row times the second, in 8-bit floats with a scale for each group",
    "op_family": "pointwise",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 128, "hidden": 256, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 251, "hidden": 480, "group": 96, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 512, "hidden": 1024, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 64, "hidden": 14336, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "hidden": 14336, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 32768, "hidden": 2048, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 4093, "hidden": 4896, "group": 96, "dtype": "float32"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, group=128):
        super().__init__()
        self.group = group

    def forward(self, x):
        gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
        y = (F.silu(gate) * up).unflatten(-1, (-1, self.group))
        scale = y.abs().amax(dim=-1, keepdim=True).clamp_min(1e-10) / 448.0
        return (y / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def get_inputs(rows=128, hidden=256, dtype="float32"):
    return [torch.randn(rows, 2 * hidden).to(getattr(torch, dtype))]


def get_init_inputs(group=128):
    return [group]
