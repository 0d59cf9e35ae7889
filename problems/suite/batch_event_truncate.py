"""Histories of users cut to their last events: jagged rows that lose their first elements where they are long."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "The last events of every row of a jagged batch, as values and lengths",
    "op_family": "movement",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 64, "mean": 20, "width": 4, "keep": 16}},
        {"name": "odd", "for": "cpu", "params": {"batch": 61, "mean": 37, "width": 3, "keep": 19}},
        {"name": "large", "for": "cpu", "params": {"batch": 256, "mean": 50, "width": 8, "keep": 32}},
        {"name": "few", "for": "gpu", "params": {"batch": 256, "mean": 200, "width": 1, "keep": 128}},
        {"name": "narrow", "for": "gpu", "params": {"batch": 4096, "mean": 200, "width": 1, "keep": 128}},
        {"name": "fp32", "for": "gpu", "params": {"batch": 4096, "mean": 200, "width": 16, "keep": 128}},
        {
            "name": "odd_bf16",
            "for": "gpu",
            "params": {"batch": 4093, "mean": 211, "width": 37, "keep": 101, "dtype": "bfloat16"},
        },
        {
            "name": "large_bf16",
            "for": "gpu",
            "params": {"batch": 16384, "mean": 200, "width": 64, "keep": 128, "dtype": "bfloat16"},
        },
    ],
    "domains": {"values": "real", "lengths": "shuffled"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def forward(self, values, lengths):
        kept = lengths.clamp_max(self.keep)
        ends = lengths.cumsum(0)
        starts = F.pad(kept.cumsum(0), (1, 0))  # where each row begins among those that are kept
        row = torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), kept)
        within = torch.arange(row.numel(), device=lengths.device) - starts[row]
        return values[(ends - kept)[row] + within], kept


def get_inputs(batch=64, mean=20, width=4, keep=16, dtype="float32"):
    # Quantiles of a log-normal distribution, shuffled: many short rows, a few very long ones, always as many events.
    normal = torch.special.ndtri((torch.arange(batch, dtype=torch.float64) + 0.5) / batch)
    lengths = (mean * torch.exp(1.5 * normal - 1.125)).long()[torch.randperm(batch)]
    return [torch.randn(int(lengths.sum()), width).to(getattr(torch, dtype)), lengths]


def get_init_inputs(keep=16):
    return [keep]
