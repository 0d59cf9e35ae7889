"""A certificate needs the fresh judgement: a machine that fails it is no reason to go without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.certificate import certify
from worker.judge.certificate.certify import SystemReport, examine
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.verdict import Verdict

REQUEST = EvaluationRequest("cand_1", "class ModelNew: pass", "relu", "it", "cpu", "cpp")


@pytest.mark.parametrize("verdict", [Verdict.INFRA_ERROR, Verdict.INCORRECT])
def test_without_a_fresh_judgement_nothing_is_certified(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    monkeypatch.setattr(certify, "check_system", lambda *_: SystemReport())
    parts: Any = SimpleNamespace(again=lambda: Evaluation("cand_1", verdict, "the reason"), control=None)
    report = examine(parts, REQUEST, Evaluation("cand_1", Verdict.OK, speedup=1.5))
    assert (report.verdict, report.reason) == (verdict, "a fresh judgement failed: the reason")
