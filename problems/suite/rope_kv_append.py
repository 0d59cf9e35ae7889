"""What comes before attention in serving: rotate queries and keys by position, and put keys and values into the cache.

New caches are returned: the old ones with the tokens written over, each of which has a slot of its own.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Rotary embedding of queries and keys by position, keys and values written to slots of a cache",
    "op_family": "movement",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"tokens": 32, "heads": 4, "kv_heads": 2, "dim": 32, "slots": 64, "length": 128},
        },
        {
            "name": "odd",
            "for": "cpu",
            "params": {"tokens": 61, "heads": 6, "kv_heads": 3, "dim": 96, "slots": 127, "length": 251},
        },
        {
            "name": "large",
            "for": "cpu",
            "params": {"tokens": 512, "heads": 16, "kv_heads": 4, "dim": 64, "slots": 1024, "length": 2048},
        },
        {"name": "small_bf16", "for": "gpu", "params": {"tokens": 64, "slots": 1024, "dtype": "bfloat16"}},
        {"name": "decode_bf16", "for": "gpu", "params": {"tokens": 256, "slots": 16384, "dtype": "bfloat16"}},
        {"name": "prompt_bf16", "for": "gpu", "params": {"tokens": 16384, "slots": 32768, "dtype": "bfloat16"}},
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {
                "tokens": 4093,
                "heads": 25,
                "kv_heads": 5,
                "dim": 96,
                "slots": 8191,
                "length": 4099,
                "dtype": "float16",
            },
        },
    ],
    "domains": {
        "q": "real",
        "k": "real",
        "v": "real",
        "key_cache": "real",
        "value_cache": "real",
        "positions": {"index": "length"},
        "slots": "shuffled",
    },
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def forward(self, q, k, v, key_cache, value_cache, positions, slots):
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        rotated = []
        for x in (q, k):
            first, second = x.chunk(2, dim=-1)
            rotated.append(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
        return rotated[0], key_cache.index_copy(0, slots, rotated[1]), value_cache.index_copy(0, slots, v)


def get_inputs(tokens=32, heads=32, kv_heads=8, dim=128, slots=64, length=8192, dtype="float32"):
    shapes = [(tokens, heads, dim), *[(tokens, kv_heads, dim)] * 2, *[(slots, kv_heads, dim)] * 2]
    tensors = [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]
    return [*tensors, torch.randint(length, (tokens,)), torch.randperm(slots)[:tokens]]


def get_init_inputs(length=8192, dim=128, dtype="float32"):
    return [length, dim, 10000.0, dtype]
