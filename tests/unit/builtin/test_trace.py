"""Tracing: workloads of the target, no memory, composite ops, state dict names, in-place ops."""

from __future__ import annotations

import pytest

from worker.builtin.trace import Graph, TraceError, Workload, read_spec, trace_problem, workloads

SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F

SPEC = {"workloads": [
    {"name": "a", "for": "cpu", "params": {"n": 8}},
    {"name": "b", "for": "gpu", "params": {"n": 64}},
    {"name": "c", "params": {"n": 16}},
]}

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(n), nn.Linear(n, n))
        self.register_buffer("shift", torch.ones(n))

    def forward(self, x, *more):
        y = self.layers(x) + self.shift
        y.mul_(2)
        return torch.softmax(y, -1) + more[0]

def get_inputs(n):
    return [torch.randn(4, n), torch.randn(4, n)]

def get_init_inputs(n):
    return [n]
"""


def graph(body: str) -> Graph:
    start, end = SOURCE.index("        y = self"), SOURCE.index("def get_inputs")
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return trace_problem(SOURCE[:start] + lines + "\n\n" + SOURCE[end:], "cpu")[0]


def ops(traced: Graph) -> list[str]:
    return [node.op for node in traced.nodes if node.op not in ("input", "parameter")]


def test_spec_is_read_without_running_the_source() -> None:
    assert read_spec("raise SystemExit\nSPEC = {'summary': 'x'}") == {"summary": "x"}
    assert read_spec("SPEC = dict(a=1)") == {}


def test_workloads_are_those_of_the_target() -> None:
    assert [w.name for w in workloads(SOURCE, "cpu")] == ["a", "c"]
    assert [w.name for w in workloads(SOURCE, "nvidia-h100")] == ["b", "c"]
    assert workloads("x = 1", "cpu") == (Workload("default"),)


def test_gigantic_inputs_cost_nothing() -> None:
    source = SOURCE.replace(": 64}", ": 65536}").replace("torch.randn(4, n)", "torch.randn(1 << 30, n)")
    traced = trace_problem(source, "nvidia-h100")[0]
    assert traced.inputs[0].shape == (1 << 30, 65536)


def test_ops_stay_composite_and_in_place_ones_become_functional() -> None:
    traced = trace_problem(SOURCE, "cpu")[0]
    assert ops(traced) == [
        "aten.layer_norm.default", "aten.linear.default", "aten.add.Tensor", "aten.mul.Tensor", "aten.softmax.int",
        "aten.add.Tensor",
    ]  # fmt: skip
    assert [node.name for node in traced.inputs] == ["x", "more[0]"]
    assert [node.name for node in traced.parameters][-1] == "shift"
    assert traced.parameters[0].name == "layers.0.weight"


def test_defaults_of_an_op_are_filled_in() -> None:
    softmax = next(n for n in graph("return F.log_softmax(x, dim=-1)").nodes if "softmax" in n.op)
    assert softmax.args[1:] == (-1, None)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("v = x[:, :2]\nx2 = x * 1\nw = x2.view(-1)\nx2 += 1\nreturn w", "mutates"),
        ("return {'a': 1}", "not a tensor"),
        ("return x @ torch.tensor([1.0]).expand(8)", "neither passed in nor in the state dict|could not be traced"),
        ("raise RuntimeError('no')", "no"),
    ],
)
def test_what_cannot_be_traced_says_why(body: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        graph(body)


@pytest.mark.parametrize("missing", ["Model", "get_inputs", "get_init_inputs"])
def test_an_incomplete_reference_is_named(missing: str) -> None:
    with pytest.raises(TraceError, match=missing):
        trace_problem(SOURCE.replace(f" {missing}(", f" renamed_{missing}("), "cpu")
