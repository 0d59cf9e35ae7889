"""A one-dimensional convolution of kernel 3, as in audio and sequence encoders: channels first, padding 1, a bias."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "1-D convolution with kernel 3, padding 1 and a bias, channels first",
    "op_family": "convolution",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 2, "inner": 24, "outer": 24, "length": 50}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "inner": 19, "outer": 37, "length": 67}},
        {"name": "large", "for": "cpu", "params": {"batch": 4, "inner": 96, "outer": 96, "length": 100}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"batch": 64, "inner": 96, "outer": 96, "length": 200, "dtype": "bfloat16"},
        },
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"batch": 509, "inner": 83, "outer": 101, "length": 211, "dtype": "float16"},
        },
        {
            "name": "fp16",
            "for": "gpu",
            "params": {"batch": 2048, "inner": 96, "outer": 96, "length": 200, "dtype": "float16"},
        },
        {
            "name": "wide_fp16",
            "for": "gpu",
            "params": {"batch": 64, "inner": 256, "outer": 256, "length": 1024, "dtype": "float16"},
        },
        {
            "name": "large_bf16",
            "for": "gpu",
            "params": {"batch": 2048, "inner": 128, "outer": 128, "length": 512, "dtype": "bfloat16"},
        },
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"searched": "Searched"},
}


class Model(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel_size=3, padding=1, dtype=getattr(torch, dtype))

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


def get_inputs(batch=2, inner=96, length=200, dtype="float32"):
    return [torch.randn(batch, inner, length).to(getattr(torch, dtype))]


def get_init_inputs(inner=96, outer=96, dtype="float32"):
    return [inner, outer, dtype]
