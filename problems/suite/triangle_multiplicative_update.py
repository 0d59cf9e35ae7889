"""AlphaFold 3's triangle multiplicative update with outgoing edges: each pair of residues looks at all third ones."""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Triangle multiplicative update (outgoing): LayerNorm, gated projections, sum over third nodes, output",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 1, "nodes": 16, "dim": 16, "hidden": 16}},
        {"name": "odd", "for": "cpu", "params": {"batch": 2, "nodes": 13, "dim": 19, "hidden": 16, "masked": True}},
        {"name": "large", "for": "cpu", "params": {"batch": 1, "nodes": 40, "dim": 48, "hidden": 32, "masked": True}},
        {"name": "n256_c128_b2", "for": "gpu", "params": {"batch": 2, "nodes": 256, "dim": 128}},
        {"name": "n768_c128_cauchy", "for": "gpu", "params": {"batch": 1, "nodes": 768, "dim": 128, "cauchy": True}},
        {"name": "n256_c384_b2_masked", "for": "gpu", "params": {"batch": 2, "nodes": 256, "dim": 384, "masked": True}},
        {"name": "n512_c128", "for": "gpu", "params": {"batch": 1, "nodes": 512, "dim": 128}},
        {"name": "n1024_c128_cauchy", "for": "gpu", "params": {"batch": 1, "nodes": 1024, "dim": 128, "cauchy": True}},
        {"name": "n768_c384_masked", "for": "gpu", "params": {"batch": 1, "nodes": 768, "dim": 384, "masked": True}},
        {"name": "n1024_c384", "for": "gpu", "params": {"batch": 1, "nodes": 1024, "dim": 384}},
    ],
    "domains": {"x": "real", "mask": "unit"},
    "precision": {"compute": "bfloat16", "tf32": True},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.left = nn.Linear(dim, hidden, bias=False)
        self.right = nn.Linear(dim, hidden, bias=False)
        self.left_gate = nn.Linear(dim, hidden, bias=False)
        self.right_gate = nn.Linear(dim, hidden, bias=False)
        self.out_gate = nn.Linear(dim, hidden, bias=False)
        self.out_norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x, mask):
        x = self.norm(x)
        mask = mask.unsqueeze(-1)
        left = self.left(x) * mask * torch.sigmoid(self.left_gate(x))
        right = self.right(x) * mask * torch.sigmoid(self.right_gate(x))
        pairs = torch.einsum("bikd,bjkd->bijd", left, right)
        return self.out(self.out_norm(pairs) * torch.sigmoid(self.out_gate(x)))


def get_inputs(batch=1, nodes=16, dim=16, masked=False, cauchy=False):
    x = torch.randn(batch, nodes, nodes, dim)
    if cauchy:
        x = x / torch.randn(batch, nodes, nodes, dim)  # heavy tails
    mask = torch.ones(batch, nodes, nodes)
    if masked:
        mask = torch.randint(2, (batch, nodes, nodes)).float()
    return [x, mask]


def get_init_inputs(dim=16, hidden=128):
    return [dim, hidden]
