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
    report = evaluation.to_json()
    assert list(report["stages_s"]) == ["load", "verify"]
    assert {each["name"]: each["wall_s"] for each in report["phases"]} == report["stages_s"]
    assert report["phases"][0]["began_at"] <= report["phases"][1]["began_at"]
