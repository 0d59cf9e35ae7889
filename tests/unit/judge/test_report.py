"""The report of a judgement."""

from __future__ import annotations

import pytest

from worker.judge.report import Evaluation


def test_a_stage_is_noted_also_when_it_ends_in_a_fault() -> None:
    evaluation = Evaluation("a")
    with evaluation.stage("load"):
        pass
    with pytest.raises(ValueError, match="wrong"), evaluation.stage("verify"):
        raise ValueError("wrong")
    assert list(evaluation.to_json()["stages_s"]) == ["load", "verify"]
