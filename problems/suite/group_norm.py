"""GroupNorm of images, with weight and bias: the normalisation of diffusion U-Nets and VAEs."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "GroupNorm over groups of channels of images, with weight and bias",
    "op_family": "normalization",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 2, "channels": 32, "height": 16, "width": 16, "groups": 8}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "channels": 30, "height": 37, "width": 41, "groups": 5}},
        {"name": "large", "for": "cpu", "params": {"batch": 2, "channels": 64, "height": 64, "width": 64}},
        {
            "name": "small_fp16",
            "for": "gpu",
            "params": {"batch": 2, "channels": 1280, "height": 16, "width": 16, "dtype": "float16"},
        },
        {
            "name": "unet_fp16",
            "for": "gpu",
            "params": {"batch": 16, "channels": 320, "height": 64, "width": 64, "dtype": "float16"},
        },
        {
            "name": "vae_bf16",
            "for": "gpu",
            "params": {"batch": 2, "channels": 128, "height": 512, "width": 512, "dtype": "bfloat16"},
        },
        {
            "name": "wide_bf16",
            "for": "gpu",
            "params": {"batch": 16, "channels": 512, "height": 64, "width": 64, "dtype": "bfloat16"},
        },
        {
            "name": "odd_fp32",
            "for": "gpu",
            "params": {"batch": 7, "channels": 96, "height": 113, "width": 97, "groups": 12},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}


class Model(nn.Module):
    def __init__(self, channels, groups=32, dtype="float32"):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, dtype=getattr(torch, dtype))

    def forward(self, x):
        return self.norm(x)


def get_inputs(batch=2, channels=64, height=16, width=16, dtype="float32"):
    return [torch.randn(batch, channels, height, width).to(getattr(torch, dtype))]


def get_init_inputs(channels=64, groups=32, dtype="float32"):
    return [channels, groups, dtype]
