"""Small problems that fit a seat, and ways to compute them wrongly."""

from __future__ import annotations

import textwrap
from typing import Any

import torch

from worker.judge.dynamics.honest import accumulated_in
from worker.judge.dynamics.seats import Operation, Seat, find_seat
from worker.judge.reference.problem import Problem, call_reference

EMBEDDING = """
import torch
from torch import nn
SPEC = {"domains": {"ids": {"index": "vocab"}}, "workloads": [{"name": "only", "params": {"vocab": 64, "dtype": "%s"}}]}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.eps = 1e-5
    def forward(self, dy, ids, table, weight):
        wide = torch.promote_types(table.dtype, torch.float32)
        x, dy = table[ids].to(wide), dy.to(wide)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        normed, inner = x * scale, dy * weight.to(wide)
        dx = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        dtable = torch.zeros(table.shape, dtype=wide).index_add_(0, ids, dx)
        return dtable.to(table.dtype), (dy * normed).sum(0).to(weight.dtype)
def get_inputs(vocab=64, tokens=1024, width=32, dtype="float32"):
    kind = getattr(torch, dtype)
    floats = [torch.randn(tokens, width), torch.randn(vocab, width), torch.randn(width)]
    dy, table, weight = (value.to(kind) for value in floats)
    return [dy, torch.randint(vocab, (tokens,)), table, weight]
def get_init_inputs():
    return []
"""

LAYER = """
import torch
from torch import nn
SPEC = {"backward": True}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48))
    def forward(self, x, residual):
        h = x + residual
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
def get_inputs():
    return [torch.randn(130, 48), torch.randn(130, 48)]
def get_init_inputs():
    return []
"""

LOSS = """
import torch
from torch import nn
from torch.nn import functional as F
SPEC = {"backward": True, "domains": {"target": {"index": 40}}}
class Model(nn.Module):
    def forward(self, logits, target):
        return F.cross_entropy(logits, target)
def get_inputs():
    return [torch.randn(96, 40), torch.randint(40, (96,))]
def get_init_inputs():
    return []
"""


def embedding(dtype: str = "float32") -> str:
    """An embedding gradient behind an RMSNorm."""
    return EMBEDDING % dtype


def seat_of(source: str, kind: str | None = None) -> Seat:
    """The seat of a problem's first workload."""
    problem = Problem(textwrap.dedent(source), "seated")
    instance = problem.instance(problem.workloads("cpu")[0], "cpu", 3)
    return find_seat(kind, instance, instance.like, call_reference(instance.call, instance.like))


def reference(seat: Seat) -> Operation:
    """The reference as it is."""
    return lambda arguments: call_reference(seat.instance.call, arguments)


def in_bf16(seat: Seat) -> Operation:
    """An embedding gradient whose running sums are kept in bf16."""

    def operation(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        outputs = call_reference(seat.instance.call, arguments)
        sums = accumulated_in(seat, arguments, torch.bfloat16)
        return (sums.to(outputs[0].dtype), *outputs[1:])

    return operation


def shrunk(seat: Seat, place: int, factor: float) -> Operation:
    """One output a little too small, always."""

    def operation(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        outputs = list(call_reference(seat.instance.call, arguments))
        outputs[place] = outputs[place] * factor
        return tuple(outputs)

    return operation
