"""Depthwise 2-D convolution with a bias: each channel with its own small filter (ConvNeXt's 7x7, MobileNet's 3x3)."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Depthwise 2-D convolution with bias, same padding",
    "op_family": "convolution",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "channels": 32, "size": 28, "kernel": 3}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "channels": 29, "size": 31, "kernel": 5}},
        {"name": "large", "for": "cpu", "params": {"batch": 2, "channels": 64, "size": 56, "kernel": 7}},
        {
            "name": "convnext_bf16",
            "for": "gpu",
            "params": {"batch": 256, "channels": 96, "size": 56, "kernel": 7, "dtype": "bfloat16"},
        },
        {
            "name": "convnext_nhwc_bf16",
            "for": "gpu",
            "params": {"batch": 256, "channels": 96, "size": 56, "kernel": 7, "dtype": "bfloat16", "layout": "nhwc"},
        },
        {
            "name": "mobile_fp16",
            "for": "gpu",
            "params": {"batch": 128, "channels": 144, "size": 112, "kernel": 3, "dtype": "float16"},
        },
        {
            "name": "mobile_nhwc_fp16",
            "for": "gpu",
            "params": {"batch": 128, "channels": 144, "size": 112, "kernel": 3, "dtype": "float16", "layout": "nhwc"},
        },
        {
            "name": "late_bf16",
            "for": "gpu",
            "params": {"batch": 256, "channels": 768, "size": 14, "kernel": 7, "dtype": "bfloat16"},
        },
        {"name": "odd_fp32", "for": "gpu", "params": {"batch": 61, "channels": 61, "size": 109, "kernel": 5}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"batch": 4, "channels": 96, "size": 28, "kernel": 7, "dtype": "bfloat16"},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"searched": "Searched"},
}


class Model(nn.Module):
    def __init__(self, channels, kernel, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv2d(
            channels, channels, kernel, padding=kernel // 2, groups=channels, dtype=getattr(torch, dtype)
        )

    def forward(self, x):
        return self.conv(x)


class Searched(Model):
    """The algorithm of cuDNN's that is the fastest when all are tried, not the one that it expects to be."""

    def forward(self, x):
        if not x.is_cuda:
            raise RuntimeError("cuDNN needs a GPU")
        cudnn = torch.backends.cudnn
        with cudnn.flags(enabled=True, benchmark=True, benchmark_limit=0, allow_tf32=cudnn.allow_tf32):
            return self.conv(x)


def get_inputs(batch=1, channels=32, size=28, dtype="float32", layout="nchw"):
    x = torch.randn(batch, channels, size, size).to(getattr(torch, dtype))
    return [x.to(memory_format=torch.channels_last) if layout == "nhwc" else x]


def get_init_inputs(channels=32, kernel=3, dtype="float32"):
    return [channels, kernel, dtype]
