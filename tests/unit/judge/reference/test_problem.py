"""References: parameters are moved off their identities, and a file that does not run is refused by its line."""

from __future__ import annotations

import math

import pytest
import torch

from problems.catalog import ProblemError, bundled
from worker.judge.exhibits import Exhibits
from worker.judge.numerics.case import Case
from worker.judge.numerics.truth import Truth, prepare_cases
from worker.judge.reference.domains import resolved
from worker.judge.reference.problem import Instance, Problem
from worker.judge.verdict import ReferenceFailed

PLAIN = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
    def forward(self, x):
        {body}
def get_inputs():
    return [torch.rand(32, 8)]
def get_init_inputs():
    return []
"""


def cases_of(problem: Problem, instance: Instance, count: int) -> list[Case]:
    truth = Truth(instance, problem.spec.precision, resolved(problem, instance))
    return prepare_cases(problem, truth, "cpu", 1, count)


def families_within(budget_bytes: float, count: int = 11) -> list[str]:
    problem = plain("return x * 2")
    instance = problem.instance(problem.workloads("cpu")[0], "cpu", seed=1)
    truth = Truth(instance, problem.spec.precision, resolved(problem, instance))
    return [case.family for case in prepare_cases(problem, truth, "cpu", 1, count, budget_bytes)]


def plain(body: str) -> Problem:
    return Problem(PLAIN.format(body=body), "plain")


def test_cases_keep_to_their_budget_and_special_values_are_never_left_out() -> None:
    every = families_within(math.inf)
    assert len(every) == 11
    problem = plain("return x * 2")
    (case,) = cases_of(problem, problem.instance(problem.workloads("cpu")[0], "cpu", seed=1), 1)
    assert case.nbytes == 4 * case.inputs[0].numel() * (1 + 2 + 1)
    assert families_within(6 * case.nbytes) == [*every[:6], "special"]
    assert families_within(1) == [*every[:2], "special"]
    assert families_within(1, count=2) == every[:2]


def test_a_workload_that_does_not_train_has_no_gradients() -> None:
    workloads = '[{"name": "trained"}, {"name": "served", "backward": False}]'
    source = PLAIN.format(body="return self.norm(x)") + f'SPEC = {{"backward": True, "workloads": {workloads}}}'
    problem = Problem(source, "plain")
    trained, served = (problem.instance(workload, "cpu", seed=1) for workload in problem.workloads("cpu"))
    assert (trained.backward, len(trained.like), trained.parameters) == (True, 2, ("norm.weight", "norm.bias"))
    assert (served.backward, len(served.like), served.parameters) == (False, 1, ())
    assert not any(parameter.requires_grad for parameter in served.model.parameters())
    assert not any(parameter.requires_grad for parameter in problem.fresh_model(served, "cpu", 1).parameters())


def test_a_file_without_a_spec_has_one_workload() -> None:
    problem = plain("return x * 2")
    (workload,) = problem.workloads("cpu")
    instance = problem.instance(workload, "cpu", seed=1)
    assert instance.arguments == ("x",)
    assert len(cases_of(problem, instance, 4)) == 4


def test_identity_parameters_are_moved_and_variances_stay_positive() -> None:
    problem = plain("return self.norm(x)")
    model = problem.instance(problem.workloads("cpu")[0], "cpu", seed=1).model
    assert not torch.allclose(model.norm.weight, torch.ones(8))
    assert not torch.allclose(model.norm.bias, torch.zeros(8))
    assert (model.norm.running_var > 0).all()
    assert not torch.allclose(model.norm.running_var, torch.ones(8))


def test_a_reference_whose_domain_excludes_negative_numbers_is_judged_on_positive_ones() -> None:
    problem = plain("return torch.log(x)")
    instance = problem.instance(problem.workloads("cpu")[0], "cpu", seed=1)
    cases = cases_of(problem, instance, 2)
    assert all(bool((case.inputs[0] > 0).all()) for case in cases)
    assert all(bool(torch.isfinite(case.truth[0]).all()) for case in cases)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return x @ x", r"line 9: forward failed: RuntimeError"),
        ("return None", r"line 9: forward returns nothing"),
        ("return x + torch.rand_like(x)", r"the reference is random"),
        ("raise SystemExit", r"line 9: forward failed: SystemExit"),
    ],
)
def test_a_reference_that_cannot_be_judged_says_why(body: str, message: str) -> None:
    problem = plain(body)
    with pytest.raises(ReferenceFailed, match=message):
        Exhibits(problem, "cpu", "cpu", seed=0)


def test_a_file_that_fails_at_import_names_the_line() -> None:
    with pytest.raises(ReferenceFailed, match="line 2: the file does not run: ModuleNotFoundError"):
        Problem("\nimport no_such_module\n" + PLAIN.format(body="return x"), "broken")


def test_a_file_without_a_model_is_refused() -> None:
    with pytest.raises(ProblemError):
        Problem("import torch\n", "empty")


def test_inputs_that_a_reference_changes_in_place_do_not_reach_the_candidates() -> None:
    problem = plain("return x.mul_(2)")
    instance = problem.instance(problem.workloads("cpu")[0], "cpu", seed=1)
    case = cases_of(problem, instance, 1)[0]
    assert torch.equal(case.eager[0], case.inputs[0] * 2)


@pytest.mark.parametrize("name", sorted(bundled()))
def test_every_bundled_problem_loads(name: str) -> None:
    assert Problem(bundled()[name].source, name).workloads("cpu")
