"""Domains that a SPEC does not declare: what an index indexes, where a float may lie, and what has to stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from problems.catalog import bundled
from worker.judge.reference.domains import InferredDomain, infer_domains, resolved
from worker.judge.reference.problem import Problem
from worker.judge.verdict import ReferenceFailed

FILE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(70, 8)
    def forward(self, {arguments}):
        return {result}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


def inferred(arguments: str, result: str, inputs: str) -> dict[str, InferredDomain]:
    problem = Problem(FILE.format(arguments=arguments, result=result, inputs=inputs), "undeclared")
    return infer_domains(problem, problem.instance(problem.workloads("cpu")[0], "cpu", seed=1))


@pytest.mark.parametrize(
    ("result", "inputs", "bound"),
    [
        ("self.table(i)", "torch.randint(5, (9,))", 70),
        ("self.table(i.view(-1).to(torch.int64))", "torch.randint(5, (3, 3), dtype=torch.int32)", 70),
        ("self.table.weight[i]", "torch.randint(5, (9,))", 70),
        ("self.table.weight[:, i]", "torch.randint(5, (9,))", 8),
        ("self.table.weight.gather(1, i[:, None])", "torch.randint(2, (9,))", 8),
        ("torch.zeros(33, 4).index_add_(0, i, torch.ones(9, 4))", "torch.randint(5, (9,))", 33),
        ("F.cross_entropy(self.table.weight[:9], i)", "torch.randint(2, (9,))", 8),
        ("F.one_hot(i, 21).float()", "torch.randint(5, (9,))", 21),
        ("self.table(i) + self.table.weight[:, i].sum()", "torch.randint(5, (9,))", 8),  # the smaller of two
        ("i * 2.0", "torch.randint(5, (9,))", None),
        ("self.table(i + 1)", "torch.randint(5, (9,))", None),  # derived: its own range is known to be safe
    ],
)
def test_an_index_is_bounded_by_what_it_indexes(result: str, inputs: str, bound: int | None) -> None:
    found = inferred("i", result, inputs)["i"]
    assert (found.kind, found.bound) == ("index", bound)
    assert found.why


@pytest.mark.parametrize(
    ("result", "inputs", "kind"),
    [
        ("x * 2", "torch.rand(9, 9)", "real"),
        ("torch.log(x)", "torch.rand(9, 9) + 0.1", "positive"),
        ("torch.sqrt(x).sum()", "torch.rand(9, 9)", "positive"),
        ("torch.sqrt(x * x + 1e-6)", "torch.rand(9, 9)", "real"),
        ("torch.log(x).neg() + torch.log(1 - x)", "torch.rand(9, 9) * 0.9 + 0.05", "unit"),
        ("F.binary_cross_entropy(x, torch.ones(9, 9))", "torch.rand(9, 9)", "unit"),
        ("torch.log(x + 0.5)", "torch.rand(9, 9) - 0.4", "fixed"),
        ("torch.linalg.cholesky(x)", "torch.eye(9) + 0.1", "fixed"),
        ("x + 1", "torch.where(torch.rand(9, 9) < 0.5, 0.0, -torch.inf)", "fixed"),
        ("x + 1", "(torch.rand(9, 9) < 0.5).float()", "unit"),
        ("x + 1", "torch.softmax(torch.rand(9, 9), -1)", "unit"),
    ],
)
def test_a_float_may_lie_where_the_reference_stays_finite(result: str, inputs: str, kind: str) -> None:
    assert inferred("x", result, inputs)["x"].kind == kind


def test_structures_stay() -> None:
    found = inferred(
        "x, offsets, order, mask, n",
        "x[order][:n] * mask[:n, None] + offsets[-1]",
        "torch.rand(9, 4), torch.tensor([0, 3, 3, 7]), torch.randperm(9), torch.rand(9) < 0.5, 5",
    )
    assert {name: domain.kind for name, domain in found.items()} == {
        "x": "real", "offsets": "fixed", "order": "fixed", "mask": "fixed", "n": "fixed",
    }  # fmt: skip
    assert "sorted" in found["offsets"].why and "permutation" in found["order"].why and "int" in found["n"].why


def test_a_triangular_argument_says_so() -> None:
    assert "upper as get_inputs makes it" in inferred("x", "x @ x", "torch.rand(8, 8).triu()")["x"].why


@pytest.mark.parametrize("name", ["cross_entropy", "embedding_grad_rmsnorm_backward", "softmax"])
def test_what_is_declared_counts_and_undeclared_is_inferred_alike(name: str) -> None:
    source = bundled()[name].source
    declared = Problem(source, name)
    instance = declared.instance(declared.workloads("cpu")[0], "cpu", seed=1)
    found = {name: (domain.kind, domain.limit({})) for name, domain in resolved(declared, instance).items()}
    blank = Problem(_without_domains(source), name)
    again = blank.instance(blank.workloads("cpu")[0], "cpu", seed=1)
    assert {name: (domain.kind, domain.limit({})) for name, domain in resolved(blank, again).items()} == found


def _without_domains(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if not line.startswith('    "domains"'))


def test_the_trace_does_not_change_the_example() -> None:
    problem = Problem(FILE.format(arguments="x", result="x.mul_(2)", inputs="torch.rand(4, 4)"), "inplace")
    instance = problem.instance(problem.workloads("cpu")[0], "cpu", seed=1)
    before = instance.like[0].clone()
    infer_domains(problem, instance)
    assert torch.equal(instance.like[0], before)


DECLARED = """
SPEC = {{
    "domains": {{"i": {{"index": {limit}}}}},
    "workloads": [{{"name": "one", "params": {{"count": 9}}}}, {{"name": "more", "params": {{"rows": 60}}}}],
}}
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, i):
        return torch.zeros(80, 4).index_add(0, i + 1, torch.ones(len(i), 4))
def get_inputs(count=9, rows=30):
    return [torch.full((count,), {own})]
def get_init_inputs():
    return []
"""


def declared(limit: str, own: str) -> dict[str, InferredDomain]:
    problem = Problem(DECLARED.format(limit=limit, own=own), "declared")
    return infer_domains(problem, problem.instance(problem.workloads("cpu")[0], "cpu", seed=1))


def test_a_limit_may_be_a_parameter_that_the_workload_leaves_to_its_default() -> None:
    assert declared("'rows'", "rows - 1")["i"].bound == 30


@pytest.mark.parametrize(("limit", "own"), [("'rows'", "rows"), ("7", "7"), ("'count'", "29")])
def test_own_indices_beyond_the_declared_limit_are_refused_before_anything_runs(limit: str, own: str) -> None:
    with pytest.raises(ReferenceFailed, match=r"get_inputs makes i up to \d+, but SPEC declares an index below"):
        declared(limit, own)


def test_nothing_can_be_named_where_there_is_nothing() -> None:
    problem = Problem(DECLARED.format(limit="'rows'", own="rows - 1"), "declared")
    nothing = replace(problem.workloads("cpu")[0], params={"rows": 0})
    with pytest.raises(ReferenceFailed, match="up to -1"):
        infer_domains(problem, problem.instance(nothing, "cpu", seed=1))
