"""Large truths wait in the host's memory, and are as strict from there."""

from __future__ import annotations

import pytest
import torch

from problems.catalog import bundled
from worker.judge.numerics.truth import Truth
from worker.judge.reference.domains import resolved
from worker.judge.reference.problem import Problem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_a_parked_case_takes_less_of_the_device_and_judges_alike() -> None:
    problem = Problem(bundled()["softmax"].source, "softmax")
    workload = next(each for each in problem.workloads("nvidia-h100") if each.name.startswith("small"))
    instance = problem.instance(workload, "cuda:0", seed=1)
    truth = Truth(instance, problem.spec.precision, resolved(problem, instance))
    case = truth.case("own", problem.example_inputs(instance, "cuda:0", 1))
    parked = case.parked()
    assert {exact.device.type for exact in parked.truth} == {"cpu"}
    assert parked.nbytes == case.nbytes - sum(exact.nbytes for exact in case.truth)
    wrong = (1.1 * case.eager[0], *case.eager[1:])
    for outputs in (case.eager, wrong):
        assert parked.judge(outputs) == case.judge(outputs)
    assert not parked.judge(wrong)[0].passed
