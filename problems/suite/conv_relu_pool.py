"""A stage of a classic vision network: 3x3 convolution with a bias, ReLU, and the maximum of each 2x2 window."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "3x3 convolution with bias, ReLU and 2x2 max pooling",
    "op_family": "convolution",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "inner": 16, "outer": 32, "size": 28}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "inner": 13, "outer": 29, "size": 27}},
        {"name": "large", "for": "cpu", "params": {"batch": 2, "inner": 32, "outer": 64, "size": 56}},
        {
            "name": "stem_fp16",
            "for": "gpu",
            "params": {"batch": 128, "inner": 3, "outer": 64, "size": 224, "dtype": "float16"},
        },
        {
            "name": "early_bf16",
            "for": "gpu",
            "params": {"batch": 64, "inner": 64, "outer": 128, "size": 112, "dtype": "bfloat16"},
        },
        {
            "name": "early_nhwc_bf16",
            "for": "gpu",
            "params": {"batch": 64, "inner": 64, "outer": 128, "size": 112, "dtype": "bfloat16", "layout": "nhwc"},
        },
        {
            "name": "late_nhwc_fp16",
            "for": "gpu",
            "params": {"batch": 128, "inner": 256, "outer": 512, "size": 28, "dtype": "float16", "layout": "nhwc"},
        },
        {
            "name": "odd_bf16",
            "for": "gpu",
            "params": {"batch": 31, "inner": 61, "outer": 101, "size": 57, "dtype": "bfloat16"},
        },
        {
            "name": "small_fp16",
            "for": "gpu",
            "params": {"batch": 4, "inner": 32, "outer": 64, "size": 28, "dtype": "float16"},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"fused": "Fused"},
}


class Model(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, padding=1, dtype=getattr(torch, dtype))

    def forward(self, x):
        return F.max_pool2d(F.relu(self.conv(x)), 2)


class Fused(Model):
    """cuDNN's convolution with bias and ReLU in one, by the fastest of its algorithms when all are tried."""

    def forward(self, x):
        if not x.is_cuda:
            raise RuntimeError("cuDNN needs a GPU")
        conv, cudnn = self.conv, torch.backends.cudnn
        with cudnn.flags(enabled=True, benchmark=True, benchmark_limit=0, allow_tf32=cudnn.allow_tf32):
            kept = torch.cudnn_convolution_relu(x, conv.weight, conv.bias, (1, 1), (1, 1), (1, 1), 1)
        return F.max_pool2d(kept, 2)


def get_inputs(batch=1, inner=16, size=28, dtype="float32", layout="nchw"):
    x = torch.randn(batch, inner, size, size).to(getattr(torch, dtype))
    return [x.to(memory_format=torch.channels_last) if layout == "nhwc" else x]


def get_init_inputs(inner=16, outer=32, dtype="float32"):
    return [inner, outer, dtype]
