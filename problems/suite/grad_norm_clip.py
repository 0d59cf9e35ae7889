"""Clipping of a model's gradients to a norm of 1: the norm of all 300 tensors in a flat buffer, and each one's own."""

# mypy: allow-untyped-defs, allow-untyped-calls

import torch
from torch import nn

SPEC = {
    "summary": "Gradients of 300 tensors in a flat buffer, clipped to a total norm; the norms are returned too",
    "op_family": "reduction",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"layers": 2, "hidden": 32, "inner": 88, "vocab": 128}},
        {"name": "odd", "for": "cpu", "params": {"layers": 3, "hidden": 37, "inner": 101, "vocab": 257}},
        {"name": "large", "for": "cpu", "params": {"layers": 33, "hidden": 64, "inner": 176, "vocab": 1000}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 128, "inner": 352, "vocab": 4000, "dtype": "bfloat16"},
        },
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 768, "inner": 2048, "vocab": 32000, "dtype": "bfloat16"},
        },
        {
            "name": "fp32",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 512, "inner": 1408, "vocab": 16000, "dtype": "float32"},
        },
        {
            "name": "odd_fp32",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 251, "inner": 677, "vocab": 5003, "dtype": "float32"},
        },
    ],
    "domains": {"grads": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"foreach": "Foreach"},
}


def sizes_of(layers, hidden, inner, vocab):
    layer = [hidden, *[hidden * hidden] * 4, hidden, *[hidden * inner] * 3]
    return [vocab * hidden, *(layer * layers), hidden, vocab * hidden]


class Model(nn.Module):
    def __init__(self, sizes, limit=1.0):
        super().__init__()
        self.sizes, self.limit = sizes, limit

    def forward(self, grads):
        wide = torch.promote_types(grads.dtype, torch.float32)
        norms = torch.stack([torch.linalg.vector_norm(part, dtype=wide) for part in grads.split(self.sizes)])
        total = torch.linalg.vector_norm(norms)
        scale = (self.limit / (total + 1e-6)).clamp(max=1.0)
        return (grads * scale).to(grads.dtype), total, norms


class Foreach(Model):
    """The norms of all tensors by one multi-tensor operation, as nn.utils.clip_grad_norm_ takes them."""

    def forward(self, grads):
        wide = torch.promote_types(grads.dtype, torch.float32)
        norms = torch.stack(torch._foreach_norm(grads.split(self.sizes), 2, dtype=wide))
        total = torch.linalg.vector_norm(norms)
        scale = (self.limit / (total + 1e-6)).clamp(max=1.0)
        return (grads * scale).to(grads.dtype), total, norms


def get_inputs(layers=2, hidden=32, inner=88, vocab=128, dtype="float32"):
    return [torch.randn(sum(sizes_of(layers, hidden, inner, vocab))).to(getattr(torch, dtype))]


def get_init_inputs(layers=2, hidden=32, inner=88, vocab=128):
    return [sizes_of(layers, hidden, inner, vocab)]
