"""Attention of one new token for each sequence over a paged cache of keys and values, with grouped heads.

`last` is the place of the newest token of each sequence, so that a sequence has last + 1 tokens: never none.
"""

# mypy: allow-untyped-defs

import math

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "One query token a sequence over a paged key/value cache, grouped heads, ragged lengths",
    "op_family": "attention",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 2, "heads": 4, "kv_heads": 2, "dim": 32, "length": 64}},
        {"name": "odd", "for": "cpu", "params": {"batch": 3, "heads": 6, "kv_heads": 2, "dim": 64, "length": 119}},
        {"name": "large", "for": "cpu", "params": {"batch": 4, "heads": 16, "kv_heads": 4, "dim": 64, "length": 512}},
        {"name": "small_bf16", "for": "gpu", "params": {"batch": 4, "length": 1024, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"batch": 64, "length": 4096, "dtype": "bfloat16"}},
        {"name": "long_bf16", "for": "gpu", "params": {"batch": 4, "length": 32768, "dtype": "bfloat16"}},
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"batch": 13, "heads": 28, "kv_heads": 4, "length": 3001, "dtype": "float16"},
        },
    ],
    "domains": {
        "q": "real",
        "keys": "real",
        "values": "real",
        "table": "index",
        "last": {"index": "length"},
    },
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"sdpa": "Sdpa"},
}


class Model(nn.Module):
    def forward(self, q, keys, values, table, last):
        batch, heads, dim = q.shape
        kv_heads = keys.shape[2]
        k = keys[table].reshape(batch, -1, kv_heads, dim).transpose(1, 2)
        v = values[table].reshape(batch, -1, kv_heads, dim).transpose(1, 2)
        grouped = q.reshape(batch, kv_heads, heads // kv_heads, dim)
        scores = grouped @ k.transpose(-2, -1) / math.sqrt(dim)
        hidden = torch.arange(k.shape[2], device=q.device) > last[:, None, None, None]
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return (weights @ v).reshape(batch, heads, dim)


class Sdpa(nn.Module):
    """PyTorch's fused attention over the gathered pages; the heads of a group are the queries of its key head."""

    def forward(self, q, keys, values, table, last):
        batch, heads, dim = q.shape
        kv_heads = keys.shape[2]
        k = keys[table].reshape(batch, -1, kv_heads, dim).transpose(1, 2)
        v = values[table].reshape(batch, -1, kv_heads, dim).transpose(1, 2)
        grouped = q.reshape(batch, kv_heads, heads // kv_heads, dim)
        shown = torch.arange(k.shape[2], device=q.device) <= last[:, None, None, None]
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=shown).reshape(batch, heads, dim)


def get_inputs(batch=2, heads=32, kv_heads=8, dim=128, length=64, page=16, dtype="float32"):
    kind, held = getattr(torch, dtype), -(-length // page)
    cache = (batch * held, page, kv_heads, dim)
    q, keys, values = torch.randn(batch, heads, dim), torch.randn(cache), torch.randn(cache)
    table = torch.randperm(batch * held).reshape(batch, held)
    return [q.to(kind), keys.to(kind), values.to(kind), table, torch.randint(length, (batch,))]


def get_init_inputs():
    return []
