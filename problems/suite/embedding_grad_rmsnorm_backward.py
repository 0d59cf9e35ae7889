"""The backward of a model's first two steps: the gradients of RMSNorm(table[ids]) for the table and the norm's weight.

Frequent tokens add thousands of rows into one: whoever adds them up in bfloat16 loses most of them.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Gradients of RMSNorm(table[ids]) with respect to the embedding table and the norm's weight",
    "op_family": "embedding",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"vocab": 1000, "hidden": 128, "tokens": 2048, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"vocab": 2039, "hidden": 257, "tokens": 3001, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"vocab": 8000, "hidden": 256, "tokens": 8192, "dtype": "float32"}},
        {"name": "bf16", "for": "cpu", "params": {"vocab": 2000, "hidden": 128, "tokens": 8192, "dtype": "bfloat16"}},
        {
            "name": "llama_bf16",
            "for": "gpu",
            "params": {"vocab": 32000, "hidden": 1024, "tokens": 16384, "dtype": "bfloat16"},
        },
        {
            "name": "wide_bf16",
            "for": "gpu",
            "params": {"vocab": 128256, "hidden": 1024, "tokens": 32768, "dtype": "bfloat16"},
        },
        {
            "name": "odd_fp32",
            "for": "gpu",
            "params": {"vocab": 50257, "hidden": 771, "tokens": 8191, "dtype": "float32"},
        },
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"vocab": 32000, "hidden": 512, "tokens": 1024, "dtype": "bfloat16"},
        },
    ],
    "domains": {"dy": "real", "ids": {"index": "vocab"}, "table": "real", "weight": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"autograd": "Autograd"},
}


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, ids, table, weight):
        wide = torch.promote_types(table.dtype, torch.float32)  # whatever is stored, sums are kept in float32
        x, dy = table[ids].to(wide), dy.to(wide)
        scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        normed = x * scale
        dnormed = dy * weight.to(wide)
        dx = scale * (dnormed - normed * (dnormed * normed).mean(dim=-1, keepdim=True))
        dtable = torch.zeros(table.shape, dtype=wide, device=table.device).index_add_(0, ids, dx)
        dweight = (dy * normed).sum(dim=0)
        return dtable.to(table.dtype), dweight.to(weight.dtype)


class Autograd(Model):
    """What autograd calls for an embedding and PyTorch's RMSNorm: its fused backward, and a sum by sorted indices."""

    def forward(self, dy, ids, table, weight):
        if not table.is_cuda:
            raise RuntimeError("PyTorch's fused RMSNorm needs a GPU")
        x, shape = table[ids], weight.shape
        _, scale = torch.ops.aten._fused_rms_norm(x, shape, weight, self.eps)
        dx, dweight = torch.ops.aten._fused_rms_norm_backward(dy, x, shape, scale, weight, [True, True])
        return torch.ops.aten.embedding_dense_backward(dx, ids, len(table), -1, False), dweight


def get_inputs(vocab=1000, hidden=128, tokens=2048, dtype="float32", skew=1.1):
    kind = getattr(torch, dtype)
    frequency = torch.arange(1, vocab + 1).float().pow(-skew)  # Zipf's law; a skew of 0 makes all tokens equal
    ids = torch.multinomial(frequency, tokens, replacement=True)
    dy, table, weight = torch.randn(tokens, hidden), torch.randn(vocab, hidden), torch.randn(hidden)
    return [dy.to(kind), ids, table.to(kind), weight.to(kind)]


def get_init_inputs():
    return [1e-6]
