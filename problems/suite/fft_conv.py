"""Causal convolution with a filter as long as the sequence, through the Fourier transform (Hyena, S4), plus a skip."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Causal convolution, through the Fourier transform, with a filter as long as the sequence, plus a skip",
    "op_family": "convolution",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 2, "channels": 8, "length": 256}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "channels": 7, "length": 331}},
        {"name": "large", "for": "cpu", "params": {"batch": 2, "channels": 32, "length": 1024}},
        {
            "name": "hyena_bf16",
            "for": "gpu",
            "params": {"batch": 16, "channels": 768, "length": 2048, "dtype": "bfloat16"},
        },
        {
            "name": "fp16",
            "for": "gpu",
            "params": {"batch": 64, "channels": 768, "length": 1024, "dtype": "float16"},
        },
        {
            "name": "long_bf16",
            "for": "gpu",
            "params": {"batch": 4, "channels": 768, "length": 8192, "dtype": "bfloat16"},
        },
        {"name": "fp32", "for": "gpu", "params": {"batch": 16, "channels": 768, "length": 1024}},
        {
            "name": "odd_bf16",
            "for": "gpu",
            "params": {"batch": 13, "channels": 509, "length": 1531, "dtype": "bfloat16"},
        },
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"batch": 2, "channels": 64, "length": 512, "dtype": "bfloat16"},
        },
    ],
    "domains": {"u": "real", "taps": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, channels, dtype="float32"):
        super().__init__()
        self.skip = nn.Parameter(torch.randn(channels).to(getattr(torch, dtype)))

    def forward(self, u, taps):
        length, wide = u.shape[-1], torch.promote_types(u.dtype, torch.float32)
        spectrum = torch.fft.rfft(u.to(wide), n=2 * length) * torch.fft.rfft(taps.to(wide), n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
        return (y + u.to(wide) * self.skip.to(wide)[:, None]).to(u.dtype)


def get_inputs(batch=2, channels=8, length=256, dtype="float32"):
    shapes = [(batch, channels, length), (channels, length)]
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def get_init_inputs(channels=8, dtype="float32"):
    return [channels, dtype]
