"""Causal linear attention in chunks: exact products inside a chunk, and a running state for all tokens before it."""

# mypy: allow-untyped-defs, allow-untyped-calls

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Causal linear attention, sum over s <= t of (q_t . k_s) v_s, in chunks",
    "op_family": "attention",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "heads": 2, "length": 128, "dim": 32, "chunk": 32}},
        {"name": "odd", "for": "cpu", "params": {"batch": 2, "heads": 3, "length": 131, "dim": 40, "chunk": 64}},
        {"name": "large", "for": "cpu", "params": {"batch": 1, "heads": 4, "length": 512, "dim": 64, "chunk": 64}},
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"batch": 4, "heads": 32, "length": 2048, "dim": 128, "dtype": "bfloat16"},
        },
        {
            "name": "long_bf16",
            "for": "gpu",
            "params": {"batch": 1, "heads": 32, "length": 16384, "dim": 128, "dtype": "bfloat16"},
        },
        {
            "name": "narrow_fp16",
            "for": "gpu",
            "params": {"batch": 8, "heads": 32, "length": 4096, "dim": 64, "dtype": "float16"},
        },
        {"name": "fp32", "for": "gpu", "params": {"batch": 2, "heads": 16, "length": 2048, "dim": 64}},
        {
            "name": "odd_bf16",
            "for": "gpu",
            "params": {"batch": 3, "heads": 7, "length": 2039, "dim": 72, "dtype": "bfloat16"},
        },
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"batch": 1, "heads": 4, "length": 256, "dim": 64, "dtype": "bfloat16"},
        },
    ],
    "domains": {"q": "real", "k": "real", "v": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, chunk=64):
        super().__init__()
        self.chunk = chunk

    def forward(self, q, k, v):
        length, scale = q.shape[2], q.shape[3] ** -0.5
        wide = torch.promote_types(q.dtype, torch.float32)
        missing = -length % self.chunk
        q, k, v = (F.pad(part, (0, 0, 0, missing)).unflatten(2, (-1, self.chunk)) for part in (q, k, v))
        inside = torch.tril(q @ k.transpose(-2, -1)) @ v
        states = (k.transpose(-2, -1) @ v).to(wide)
        before = F.pad(states.cumsum(dim=2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
        out = inside + q @ before.to(q.dtype)
        return (out * scale).flatten(2, 3)[:, :, :length].contiguous()


def get_inputs(batch=1, heads=2, length=128, dim=32, dtype="float32"):
    return [torch.randn(batch, heads, length, dim).to(getattr(torch, dtype)) for _ in range(3)]


def get_init_inputs(chunk=64):
    return [chunk]
