"""A two-dimensional convolution that keeps its input's size: a 3x3 of a residual network, and a 1-D one seen as 2-D."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "2-D convolution of stride 1 with a bias and the padding that keeps the size, channels first or last",
    "op_family": "convolution",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"batch": 1, "inner": 16, "outer": 24, "height": 9, "width": 12},
        },
        {
            "name": "odd",
            "for": "cpu",
            "params": {"batch": 2, "inner": 13, "outer": 19, "height": 7, "width": 11, "channels_last": True},
        },
        {
            "name": "large",
            "for": "cpu",
            "params": {"batch": 2, "inner": 32, "outer": 64, "height": 1, "width": 100, "kernel": [1, 3]},
        },
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"batch": 8, "inner": 64, "outer": 64, "height": 56, "width": 56, "dtype": "bfloat16"},
        },
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"batch": 31, "inner": 67, "outer": 97, "height": 37, "width": 53, "dtype": "float16"},
        },
        {
            "name": "flat_fp16",
            "for": "gpu",
            "params": {
                "batch": 2048,
                "inner": 96,
                "outer": 96,
                "height": 1,
                "width": 200,
                "kernel": [1, 3],
                "dtype": "float16",
            },
        },
        {
            "name": "resnet_fp16",
            "for": "gpu",
            "params": {"batch": 128, "inner": 64, "outer": 64, "height": 56, "width": 56, "dtype": "float16"},
        },
        {
            "name": "resnet_last_bf16",
            "for": "gpu",
            "params": {
                "batch": 128,
                "inner": 64,
                "outer": 64,
                "height": 56,
                "width": 56,
                "dtype": "bfloat16",
                "channels_last": True,
            },
        },
        {
            "name": "large_bf16",
            "for": "gpu",
            "params": {"batch": 128, "inner": 128, "outer": 128, "height": 56, "width": 56, "dtype": "bfloat16"},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"searched": "Searched"},
}


class Model(nn.Module):
    def __init__(self, inner, outer, kernel=(3, 3), dtype="float32", channels_last=False):
        super().__init__()
        padding = tuple(size // 2 for size in kernel)
        self.conv = nn.Conv2d(inner, outer, tuple(kernel), padding=padding, dtype=getattr(torch, dtype))
        if channels_last:
            weight = self.conv.weight.detach().to(memory_format=torch.channels_last)
            self.conv.weight = nn.Parameter(weight)

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


def get_inputs(batch=2, inner=16, height=8, width=8, dtype="float32", channels_last=False):
    x = torch.randn(batch, inner, height, width).to(getattr(torch, dtype))
    return [x.to(memory_format=torch.channels_last) if channels_last else x]


def get_init_inputs(inner=16, outer=16, kernel=(3, 3), dtype="float32", channels_last=False):
    return [inner, outer, kernel, dtype, channels_last]
