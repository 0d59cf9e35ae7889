"""The joint of a transformer block that trains: dropout, the residual addition, LayerNorm.

The mask is a function of a seed and the element's place, a 32-bit integer hash that is written out here, so that one
right answer exists: a kernel makes the mask anew in its backward and stores none. Whatever drops another share of the
elements, or other elements, is wrong in every row, which is more than a test of the mask's statistics could tell.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import torch
from torch import nn

SPEC = {
    "summary": "Dropout by a seeded hash, residual addition and LayerNorm; the sum is returned too",
    "op_family": "normalization",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 256, "hidden": 256, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 509, "hidden": 517, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 1024, "hidden": 1024, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "hidden": 768, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 16384, "hidden": 4096, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 65536, "hidden": 768, "dtype": "float16"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 8192, "hidden": 4096, "dtype": "float32"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 4093, "hidden": 5003, "dtype": "float32"}},
    ],
    "domains": {"x": "real", "residual": "real", "seed": {"index": 2147483647}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
}

_WORD = 0xFFFFFFFF


def hashed(place, seed):
    """32 well mixed bits for each place: two rounds of multiply and shift, as in common integer finalisers."""
    # Not place * 0x9E3779B1 + seed * 0x85EBCA77, which is the same: Inductor makes that product one of 32 bits.
    bits = (((place + seed * 0x1A63E8A7) & _WORD) * 0x9E3779B1) & _WORD
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & _WORD
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & _WORD
    return bits ^ (bits >> 16)


class Model(nn.Module):
    def __init__(self, hidden, p=0.1, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))
        self.p = p

    def forward(self, x, residual, seed):
        place = torch.arange(x.numel(), device=x.device).reshape(x.shape)
        kept = hashed(place, seed) >= int(self.p * 2**32)
        h = residual + torch.where(kept, x / (1 - self.p), 0.0)
        return self.norm(h), h


def get_inputs(rows=256, hidden=256, dtype="float32"):
    x, residual = (torch.randn(rows, hidden).to(getattr(torch, dtype)) for _ in range(2))
    return [x, residual, torch.randint(2147483647, (1,))]


def get_init_inputs(hidden=256, dtype="float32"):
    return [hidden, 0.1, dtype]
