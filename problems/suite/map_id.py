"""Sparse ids of a recommender to the dense rows of a pruned embedding table; ids that were pruned get a default row."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Jagged int64 ids mapped to rows through a table of ordered keys, missing ids to a default",
    "op_family": "embedding",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"count": 20000, "keys": 1000, "space": 4000}},
        {"name": "odd", "for": "cpu", "params": {"count": 30011, "keys": 4099, "space": 9973}},
        {"name": "large", "for": "cpu", "params": {"count": 100000, "keys": 10000, "space": 40000}},
        {"name": "few", "for": "gpu", "params": {"count": 65536, "keys": 100000, "space": 400000}},
        {"name": "odd_keys", "for": "gpu", "params": {"count": 999983, "keys": 700001, "space": 1500007}},
        {"name": "uniform", "for": "gpu", "params": {"count": 1000000, "keys": 1000000, "space": 4000000}},
        {"name": "zipf", "for": "gpu", "params": {"count": 1000000, "keys": 1000000, "space": 4000000, "zipf": True}},
        {"name": "many_uniform", "for": "gpu", "params": {"count": 10000000, "keys": 1000000, "space": 4000000}},
        {
            "name": "many_zipf",
            "for": "gpu",
            "params": {"count": 10000000, "keys": 1000000, "space": 4000000, "zipf": True},
        },
    ],
    "domains": {"ids": {"index": "space"}, "keys": "strictly_ascending", "rows": {"index": "keys"}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, default=-1):
        super().__init__()
        self.default = default

    def forward(self, ids, keys, rows):
        places = torch.searchsorted(keys, ids).clamp_max(keys.numel() - 1)
        return torch.where(keys[places] == ids, rows[places], self.default)


def get_inputs(count=20000, keys=1000, space=4000, zipf=False):
    names = torch.randperm(space)
    # Log-uniform ranks are Zipf's law with exponent 1; `names` decides which ids are the frequent ones.
    ids = (
        names[(space ** torch.rand(count, dtype=torch.float64)).long() - 1] if zipf else torch.randint(space, (count,))
    )
    return [ids, torch.randperm(space)[:keys].sort().values, torch.randperm(keys)]


def get_init_inputs():
    return [-1]
