"""Causal attention with grouped key and value heads (Llama 3's: 32 query heads, 8 key/value heads of 128)."""

# mypy: allow-untyped-defs, allow-untyped-calls

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SPEC = {
    "summary": "Causal softmax(Q K^T / sqrt(d)) V with grouped key and value heads",
    "op_family": "attention",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "heads": 8, "kv_heads": 2, "length": 128, "dim": 64}},
        {"name": "odd", "for": "cpu", "params": {"batch": 2, "heads": 3, "kv_heads": 1, "length": 131, "dim": 64}},
        {"name": "large", "for": "cpu", "params": {"batch": 1, "heads": 8, "kv_heads": 2, "length": 384, "dim": 64}},
        {"name": "short_bf16", "for": "gpu", "params": {"batch": 4, "length": 512, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"batch": 4, "length": 2048, "dtype": "bfloat16"}},
        {"name": "odd_fp16", "for": "gpu", "params": {"batch": 1, "length": 1021, "dtype": "float16"}},
        {"name": "long_bf16", "for": "gpu", "params": {"heads": 8, "kv_heads": 2, "length": 8192, "dtype": "bfloat16"}},
        {"name": "single_bf16", "for": "gpu", "params": {"batch": 1, "length": 2048, "dtype": "bfloat16"}},
        {"name": "single_short_bf16", "for": "gpu", "params": {"batch": 1, "length": 512, "dtype": "bfloat16"}},
    ],
    "domains": {"q": "real", "k": "real", "v": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"sdpa": "Sdpa", "flash": "Flash", "cudnn": "Cudnn"},
}


class Model(nn.Module):
    def forward(self, q, k, v):
        groups = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        length = q.shape[2]
        hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v


class Sdpa(nn.Module):
    """PyTorch's fused attention, by the backend that PyTorch chooses."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Flash(Sdpa):
    def forward(self, q, k, v):
        if not q.is_cuda:
            raise RuntimeError("on a CPU it is what PyTorch chooses: see Sdpa")
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return super().forward(q, k, v)


class Cudnn(Sdpa):
    def forward(self, q, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):  # raises where there is none
            return super().forward(q, k, v)


def get_inputs(batch=1, heads=32, kv_heads=8, length=128, dim=128, dtype="float32"):
    shapes = [(batch, heads, length, dim), (batch, kv_heads, length, dim), (batch, kv_heads, length, dim)]
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def get_init_inputs():
    return []
