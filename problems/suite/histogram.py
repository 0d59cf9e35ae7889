"""How often each bin occurs in a long list of bin numbers; a few bins get most of them."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Counts of integers below a bound, with a skewed distribution",
    "op_family": "scatter",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"count": 262144, "bins": 256, "dtype": "int64"}},
        {"name": "odd", "for": "cpu", "params": {"count": 300007, "bins": 1021, "dtype": "int64"}},
        {"name": "large", "for": "cpu", "params": {"count": 1048576, "bins": 4096, "dtype": "int32"}},
        {"name": "bytes", "for": "gpu", "params": {"count": 67108864, "bins": 256, "dtype": "int64"}},
        {"name": "narrow", "for": "gpu", "params": {"count": 134217728, "bins": 1024, "dtype": "int32"}},
        {"name": "wide", "for": "gpu", "params": {"count": 67108864, "bins": 65536, "dtype": "int64"}},
        {"name": "even", "for": "gpu", "params": {"count": 67108864, "bins": 4096, "dtype": "int64", "skew": 1}},
        {"name": "odd_bins", "for": "gpu", "params": {"count": 50000017, "bins": 5003, "dtype": "int32"}},
        {"name": "small_gpu", "for": "gpu", "params": {"count": 1048576, "bins": 512, "dtype": "int32"}},
    ],
    "domains": {"ids": {"index": "bins"}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"sorted": "Sorted", "added": "Added"},
}


class Model(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, ids):
        return torch.bincount(ids, minlength=self.bins)


class Sorted(Model):
    """In the narrowest type that holds the bins, sorted, and the lengths of runs: no bin is hot."""

    def forward(self, ids):
        kinds = (torch.uint8, torch.int16, torch.int32)
        narrow = next(kind for kind in kinds if self.bins - 1 <= torch.iinfo(kind).max)
        found, counts = torch.unique(ids.to(narrow), return_counts=True)
        return counts.new_zeros(self.bins).index_copy_(0, found.long(), counts)


class Added(Model):
    """Ones added by index, without bincount's search for the largest and the smallest number first."""

    def forward(self, ids):
        one = torch.ones((), dtype=torch.int64, device=ids.device)
        return torch.zeros(self.bins, dtype=torch.int64, device=ids.device).index_add_(0, ids, one.expand(len(ids)))


def get_inputs(count=262144, bins=256, dtype="int64", skew=4):
    ids = (torch.rand(count).pow(skew) * bins).long()  # a skew of 1 makes all bins equal
    return [ids.clamp_(max=bins - 1).to(getattr(torch, dtype))]


def get_init_inputs(bins=256):
    return [bins]
