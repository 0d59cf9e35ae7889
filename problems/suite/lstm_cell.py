"""One step of an LSTM: four gates from the input and the last hidden state, then the new cell and hidden state."""

# mypy: allow-untyped-defs

import torch
from torch import nn
from torch.nn import functional as F

SPEC = {
    "summary": "One LSTM step: gates from two matrix products, new hidden and cell state",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"batch": 16, "inner": 128, "hidden": 128}},
        {"name": "odd", "for": "cpu", "params": {"batch": 29, "inner": 101, "hidden": 131}},
        {"name": "large", "for": "cpu", "params": {"batch": 64, "inner": 256, "hidden": 512}},
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"batch": 1024, "inner": 1024, "hidden": 1024, "dtype": "bfloat16"},
        },
        {
            "name": "large_bf16",
            "for": "gpu",
            "params": {"batch": 8192, "inner": 1024, "hidden": 2048, "dtype": "bfloat16"},
        },
        {
            "name": "step_fp16",
            "for": "gpu",
            "params": {"batch": 64, "inner": 2048, "hidden": 2048, "dtype": "float16"},
        },
        {"name": "fp32", "for": "gpu", "params": {"batch": 16, "inner": 2048, "hidden": 2048}},
        {
            "name": "odd_bf16",
            "for": "gpu",
            "params": {"batch": 1021, "inner": 509, "hidden": 771, "dtype": "bfloat16"},
        },
        {
            "name": "small_fp16",
            "for": "gpu",
            "params": {"batch": 32, "inner": 256, "hidden": 256, "dtype": "float16"},
        },
    ],
    "domains": {"x": "real", "h": "real", "c": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"fused": "Fused"},
}


class Model(nn.Module):
    def __init__(self, inner, hidden, dtype="float32"):
        super().__init__()
        kind, bound = getattr(torch, dtype), hidden**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inner, dtype=kind).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden, dtype=kind).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * hidden, dtype=kind).uniform_(-bound, bound))

    def forward(self, x, h, c):
        gates = F.linear(x, self.weight_ih, self.bias) + F.linear(h, self.weight_hh)
        let_in, forget, cell, let_out = gates.chunk(4, dim=-1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(let_in) * torch.tanh(cell)
        return torch.sigmoid(let_out) * torch.tanh(c), c


class Fused(Model):
    """PyTorch's fused cell behind the two products, as nn.LSTMCell has it on a GPU; there is none for a CPU."""

    def forward(self, x, h, c):
        gates = F.linear(x, self.weight_ih, self.bias), F.linear(h, self.weight_hh)
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(*gates, c)
        return h, c


def get_inputs(batch=16, inner=128, hidden=128, dtype="float32"):
    shapes = [(batch, inner), (batch, hidden), (batch, hidden)]
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def get_init_inputs(inner=128, hidden=128, dtype="float32"):
    return [inner, hidden, dtype]
