"""Rows added into other rows by an index: messages summed at the nodes of a graph, some of which are hubs.

Sums are kept in float32 whatever is stored. The order of additions is left open: an atomic sum is as right as a sorted
one, as long as it is as near to the truth.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Rows of a matrix added into the rows of another that an index names, with hot rows",
    "op_family": "scatter",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"nodes": 1000, "dim": 64, "edges": 8192, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"nodes": 2039, "dim": 77, "edges": 10007, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"nodes": 8000, "dim": 128, "edges": 16384, "dtype": "float32"}},
        {"name": "fp32", "for": "gpu", "params": {"nodes": 131072, "dim": 128, "edges": 1000000, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"nodes": 131072, "dim": 256, "edges": 1000000, "dtype": "bfloat16"}},
        {
            "name": "few_bf16",
            "for": "gpu",
            "params": {"nodes": 1000, "dim": 128, "edges": 2000000, "dtype": "bfloat16"},
        },
        {"name": "odd_fp32", "for": "gpu", "params": {"nodes": 50021, "dim": 77, "edges": 1300021, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"nodes": 2000, "dim": 64, "edges": 20000, "dtype": "bfloat16"}},
        {
            "name": "even_fp32",
            "for": "gpu",
            "params": {"nodes": 500000, "dim": 64, "edges": 3000000, "dtype": "float32", "skew": 1},
        },
    ],
    "domains": {"base": "real", "ids": {"index": "nodes"}, "rows": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"embedding": "Embedding"},
}


class Model(nn.Module):
    def forward(self, base, ids, rows):
        wide = torch.promote_types(base.dtype, torch.float32)
        return base.to(wide).index_add(0, ids, rows.to(wide)).to(base.dtype)


class Embedding(nn.Module):
    """PyTorch's gradient of an embedding, which sorts the indices and sums in parts: on a GPU in float32."""

    def forward(self, base, ids, rows):
        if not rows.is_cuda:
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return (base + torch.ops.aten.embedding_dense_backward(rows, ids, len(base), -1, False)).to(base.dtype)


def get_inputs(nodes=1000, dim=64, edges=8192, dtype="float32", skew=4):
    ids = (torch.rand(edges).pow(skew) * nodes).long().clamp_(max=nodes - 1)  # a skew of 1 makes all rows equal
    base, rows = torch.randn(nodes, dim), torch.randn(edges, dim)
    return [base.to(getattr(torch, dtype)), ids, rows.to(getattr(torch, dtype))]


def get_init_inputs():
    return []
