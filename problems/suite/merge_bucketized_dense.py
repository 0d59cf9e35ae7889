"""Dense features of a recommender to ids: each feature has borders of its own, and all share one space of ids."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Dense features bucketized by borders of their own and merged into one tensor of offset ids",
    "op_family": "pointwise",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 128, "features": 8, "borders": 16}},
        {"name": "odd", "for": "cpu", "params": {"rows": 211, "features": 13, "borders": 29, "ragged": True}},
        {"name": "large", "for": "cpu", "params": {"rows": 1024, "features": 32, "borders": 64}},
        {"name": "few", "for": "gpu", "params": {"rows": 512, "features": 64, "borders": 64}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 8192, "features": 256, "borders": 64}},
        {"name": "ragged_fp32", "for": "gpu", "params": {"rows": 8192, "features": 256, "borders": 64, "ragged": True}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 4093, "features": 131, "borders": 97, "ragged": True}},
        {"name": "large_fp32", "for": "gpu", "params": {"rows": 65536, "features": 256, "borders": 64}},
    ],
    "domains": {"dense": "real", "borders": "ascending", "offsets": "fixed"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"searchsorted": "Searchsorted"},
}


class Model(nn.Module):
    def forward(self, dense, borders, offsets):
        ends = offsets.tolist()
        columns = []
        for feature in range(dense.shape[1]):
            start, end = ends[feature], ends[feature + 1]
            buckets = torch.bucketize(dense[:, feature].contiguous(), borders[start:end])
            columns.append(buckets + (start + feature))  # n borders make n + 1 buckets
        return torch.stack(columns, dim=1)


class Searchsorted(nn.Module):
    """All features in one search: each feature's borders in a row, and infinities behind them."""

    def forward(self, dense, borders, offsets):
        counts = offsets.diff()[:, None]
        place = torch.arange(int(counts.max()), device=dense.device)
        rows = borders[(offsets[:-1, None] + place).clamp(max=borders.numel() - 1)]
        rows = torch.where(place < counts, rows, torch.inf)
        buckets = torch.searchsorted(rows, dense.t().contiguous()).minimum(counts)  # a NaN is behind all borders
        first = offsets[:-1] + torch.arange(dense.shape[1], device=dense.device)
        return (buckets + first[:, None]).t().contiguous()


def get_inputs(rows=128, features=8, borders=16, ragged=False):
    counts = torch.full((features,), borders)
    if ragged:  # from no border at all to twice as many
        counts = (torch.arange(features) * 7919) % (2 * borders + 1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    edges = [torch.randn(count).sort().values for count in counts.tolist()]
    return [torch.randn(rows, features), torch.cat(edges), offsets]


def get_init_inputs():
    return []
