"""Sums of table rows over bags of ids: the sparse features of a recommendation model."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "Sum of embedding rows over bags of ids of uneven length",
    "op_family": "embedding",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 2000, "dim": 64, "bags": 256, "lookups": 4096}},
        {"name": "odd", "for": "cpu", "params": {"rows": 5003, "dim": 77, "bags": 509, "lookups": 10007}},
        {"name": "large", "for": "cpu", "params": {"rows": 20000, "dim": 128, "bags": 512, "lookups": 32768}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 1000000, "dim": 128, "bags": 65536, "lookups": 2097152}},
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"rows": 2000000, "dim": 128, "bags": 131072, "lookups": 4194304, "dtype": "bfloat16"},
        },
        {
            "name": "narrow_fp16",
            "for": "gpu",
            "params": {"rows": 4000000, "dim": 32, "bags": 262144, "lookups": 5242880, "dtype": "float16"},
        },
        {
            "name": "short_bf16",
            "for": "gpu",
            "params": {"rows": 1000000, "dim": 256, "bags": 524288, "lookups": 1048576, "dtype": "bfloat16"},
        },
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 500009, "dim": 77, "bags": 32749, "lookups": 1000003}},
        {"name": "small_gpu", "for": "gpu", "params": {"rows": 100000, "dim": 64, "bags": 2048, "lookups": 40000}},
    ],
    "domains": {"ids": {"index": "rows"}, "offsets": "ascending", "table": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def forward(self, ids, offsets, table):
        return F.embedding_bag(ids, table, offsets, mode="sum")


def get_inputs(rows=2000, dim=64, bags=256, lookups=4096, dtype="float32"):
    ids = (torch.rand(lookups).pow(3) * rows).long().clamp_(max=rows - 1)  # some rows are popular
    weights = torch.rand(bags).pow(3)  # some bags are long, and many are empty where there are few lookups
    ends = (weights.cumsum(0) / weights.sum() * lookups).long().clamp_(max=lookups)
    offsets = torch.cat([ends.new_zeros(min(bags, 1)), ends[:-1]])
    return [ids, offsets, torch.randn(rows, dim).to(getattr(torch, dtype))]


def get_init_inputs():
    return []
