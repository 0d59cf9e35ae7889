"""The A/A control: what differs from itself is a reservation, never a verdict on the candidate."""

from __future__ import annotations

import random

from worker.judge.certificate.document import Outcome
from worker.judge.certificate.system import control
from worker.judge.report import Evaluation, EvaluationRequest, WorkloadTiming
from worker.judge.verdict import Verdict


def evaluation(ratio: float, residue_us: float = 0.0) -> Evaluation:
    rng = random.Random(3)
    mine = [100 * rng.lognormvariate(0, 0.005) for _round in range(31)]
    eager = [ratio * 100 * rng.lognormvariate(0, 0.005) for _round in range(31)]
    samples = {"candidate": mine, "eager": eager}
    row = WorkloadTiming(
        "only", 100.0, {"eager": 100.0}, "eager", ratio, (ratio, ratio), samples, residue_us=residue_us
    )
    found = Evaluation("x", Verdict.OK, timed=True)
    found.workloads = [row]
    return found


def test_a_reference_that_equals_itself_passes_with_its_figures() -> None:
    row = control.check(evaluation(1.002), "cuda:0")
    assert row.passed and abs(float(row.figures["ratio"]) - 1.002) < 0.004
    assert float(row.figures["ci95_low"]) < 1 < float(row.figures["ci95_high"])


def test_one_that_differs_from_itself_is_a_reservation() -> None:
    row = control.check(evaluation(1.05), "cuda:0")
    assert not row.passed and row.figures["outcome"] == str(Outcome.RESERVATION)
    assert "does not hold 1" in row.detail


def test_what_overheads_may_hide_is_no_difference() -> None:
    assert control.check(evaluation(1.05, residue_us=6.0), "cuda:0").passed


def test_a_control_that_could_not_be_timed_says_why() -> None:
    row = control.check(Evaluation("x", Verdict.INFRA_ERROR, "the device is gone"), "cpu")
    assert not row.passed and "the device is gone" in row.detail


def test_the_reference_is_judged_without_a_policy_on_its_own_kernels() -> None:
    asked = control.itself(EvaluationRequest("c", "class ModelNew: ...", "p", "class Model: ...", "cpu", "cpp"))
    assert asked.candidate_source.endswith("ModelNew = Model\n") and asked.own_kernel_share == 0.0
    assert asked.candidate_source.startswith("class Model")
