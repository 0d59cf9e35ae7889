"""Large truths and eager results wait in the host's memory, and are as strict from there."""

from __future__ import annotations

import pytest
import torch

from problems.catalog import bundled
from worker.judge.numerics.parking import parked
from worker.judge.numerics.truth import Truth
from worker.judge.reference.domains import resolved
from worker.judge.reference.problem import Problem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_a_parked_case_takes_less_of_the_device_and_judges_alike() -> None:
    problem = Problem(bundled()["softmax"].source, "softmax")
    workload = next(each for each in problem.workloads("nvidia-h100") if each.name.startswith("small"))
    instance = problem.instance(workload, "cuda:0", seed=1)
    exact = Truth(instance, problem.spec.precision, resolved(problem, instance))
    case = exact.case("own", problem.example_inputs(instance, "cuda:0", 1))
    apart = case.parked()
    assert {each.device.type for each in (*apart.truth, *apart.eager)} == {"cpu"} and apart.device.type == "cuda"
    assert apart.nbytes == case.nbytes - sum(each.nbytes for each in (*case.truth, *case.eager))
    wrong = (1.1 * case.eager[0], *case.eager[1:])
    for outputs in (case.eager, wrong):
        assert apart.judge(outputs) == case.judge(outputs)
    assert not apart.judge(wrong)[0].passed


def test_a_large_truth_is_pinned_while_it_lives() -> None:
    exact = torch.randn(64 << 20, dtype=torch.float64, device="cuda")
    held = parked(exact)
    assert held.is_pinned() and torch.equal(held.to("cuda"), exact)
    small = parked(exact[:1000])
    assert not small.is_pinned() and torch.equal(small.to("cuda"), exact[:1000])
    place = held.data_ptr()
    del held
    again = torch.empty(64 << 20, dtype=torch.float64)
    assert again.data_ptr() != place or not again.is_pinned(), "the memory of what is gone is pinned no longer"
