"""Batch normalisation with its running statistics, then ReLU: what follows each convolution of a served network."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Batch normalisation with fixed statistics over images, followed by ReLU",
    "op_family": "normalization",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 2, "channels": 64, "size": 28}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "channels": 61, "size": 29}},
        {"name": "large", "for": "cpu", "params": {"batch": 4, "channels": 128, "size": 56}},
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"batch": 256, "channels": 256, "size": 56, "dtype": "bfloat16"},
        },
        {
            "name": "nhwc_bf16",
            "for": "gpu",
            "params": {"batch": 256, "channels": 256, "size": 56, "dtype": "bfloat16", "layout": "nhwc"},
        },
        {
            "name": "stem_fp16",
            "for": "gpu",
            "params": {"batch": 256, "channels": 64, "size": 112, "dtype": "float16"},
        },
        {"name": "fp32", "for": "gpu", "params": {"batch": 128, "channels": 256, "size": 56}},
        {
            "name": "late_nhwc_fp16",
            "for": "gpu",
            "params": {"batch": 1024, "channels": 2048, "size": 7, "dtype": "float16", "layout": "nhwc"},
        },
        {"name": "odd_fp32", "for": "gpu", "params": {"batch": 127, "channels": 251, "size": 55}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"batch": 8, "channels": 64, "size": 56, "dtype": "bfloat16"},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, channels, dtype="float32"):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, dtype=getattr(torch, dtype))

    def forward(self, x):
        norm = self.norm
        return F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps))


def get_inputs(batch=2, channels=64, size=28, dtype="float32", layout="nchw"):
    x = torch.randn(batch, channels, size, size).to(getattr(torch, dtype))
    return [x.to(memory_format=torch.channels_last) if layout == "nhwc" else x]


def get_init_inputs(channels=64, dtype="float32"):
    return [channels, dtype]
