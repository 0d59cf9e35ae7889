"""A certificate needs the fresh judgement: a machine that fails it is no reason to go without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.certificate import certify
from worker.judge.certificate.certify import SystemReport, examine, run_check
from worker.judge.certificate.stage import SystemCheck
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.verdict import Fault, Verdict

REQUEST = EvaluationRequest("cand_1", "class ModelNew: pass", "relu", "it", "cpu", "cpp")


@pytest.mark.parametrize("verdict", [Verdict.INFRA_ERROR, Verdict.INCORRECT])
def test_without_a_fresh_judgement_nothing_is_certified(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    monkeypatch.setattr(certify, "check_system", lambda *_: SystemReport())
    parts: Any = SimpleNamespace(again=lambda: Evaluation("cand_1", verdict, "the reason"), control=None)
    report = examine(parts, REQUEST, Evaluation("cand_1", Verdict.OK, speedup=1.5))
    assert (report.verdict, report.reason) == (verdict, "a fresh judgement failed: the reason")


@pytest.mark.parametrize(("crowded", "verdict"), [(True, Verdict.INFRA_ERROR), (False, Verdict.LAUNCH_ERROR)])
def test_a_system_check_that_finds_the_device_full_of_others_is_made_another_time(
    monkeypatch: pytest.MonkeyPatch, crowded: bool, verdict: Verdict
) -> None:
    """It is no reservation: whoever says so is a candidate, which could spare itself a check."""

    def full(*_: object, **__: object) -> None:
        raise Fault(Verdict.LAUNCH_ERROR, "OutOfMemoryError: CUDA out of memory")

    monkeypatch.setattr(certify, "staged", full)
    report = SystemReport()
    parts: Any = SimpleNamespace(crowded_out=lambda _fault: crowded)
    run_check(parts, REQUEST, SystemCheck("two results alive at once", lambda _trial: None), report)
    assert report.verdict is verdict and "out of memory" in report.reason
    assert not any(row.figures.get("outcome") == "reservation" for row in report.rows)
