"""Low-rank adapters for a batch whose tokens belong to different ones, of different ranks, added to the base's output.

All adapters are stored as wide as the widest; what lies beyond an adapter's own rank is not its.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Each token's own low-rank adapter, of mixed ranks, added to the base layer's output",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"tokens": 32, "adapters": 4, "rank": 16, "inner": 64, "outer": 96}},
        {"name": "odd", "for": "cpu", "params": {"tokens": 61, "adapters": 5, "rank": 24, "inner": 131, "outer": 67}},
        {
            "name": "large",
            "for": "cpu",
            "params": {"tokens": 128, "adapters": 8, "rank": 32, "inner": 512, "outer": 512},
        },
        {"name": "small_bf16", "for": "gpu", "params": {"tokens": 16, "adapters": 8, "dtype": "bfloat16"}},
        {"name": "decode_bf16", "for": "gpu", "params": {"tokens": 256, "adapters": 32, "dtype": "bfloat16"}},
        {"name": "prompt_bf16", "for": "gpu", "params": {"tokens": 8192, "adapters": 16, "dtype": "bfloat16"}},
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {
                "tokens": 1021,
                "adapters": 13,
                "rank": 48,
                "inner": 2056,
                "outer": 3000,
                "dtype": "float16",
            },
        },
    ],
    "domains": {"base": "real", "x": "real", "a": "real", "b": "real", "adapter": {"index": "adapters"}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    ranks: torch.Tensor

    def __init__(self, adapters, rank):
        super().__init__()
        self.register_buffer("ranks", torch.tensor([max(1, rank >> (place % 4)) for place in range(adapters)]))

    def forward(self, base, x, a, b, adapter):
        adapters, rank, inner = a.shape
        low = (x @ a.reshape(adapters * rank, inner).t()).reshape(-1, adapters, rank)
        own = adapter[:, None, None] == torch.arange(adapters, device=x.device)[:, None]
        own = own & (torch.arange(rank, device=x.device) < self.ranks[:, None])
        low = torch.where(own, low, 0.0).reshape(-1, adapters * rank)
        return base + low @ b.reshape(adapters * rank, -1)


def get_inputs(tokens=32, adapters=4, rank=64, inner=4096, outer=4096, dtype="float32"):
    kind = getattr(torch, dtype)
    base, x = torch.randn(tokens, outer), torch.randn(tokens, inner)
    a, b = torch.randn(adapters, rank, inner) / inner**0.5, torch.randn(adapters, rank, outer) / rank**0.5
    return [base.to(kind), x.to(kind), a.to(kind), b.to(kind), torch.randint(adapters, (tokens,))]


def get_init_inputs(adapters=4, rank=64):
    return [adapters, rank]
