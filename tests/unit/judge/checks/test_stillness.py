"""How many stops have to be broken until a candidate is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.certificate.layers import grouped
from worker.judge.checks import stillness
from worker.judge.runners.freezing import Stillness
from worker.judge.trial import Trial
from worker.judge.verdict import Fault, Verdict

BEFORE = Stillness(stops=9, broken=7, used_s=0.5)
"""While it was verified."""


def trial(broken: int) -> Any:
    told = Stillness(stops=209, broken=7 + broken, used_s=0.5 + broken * 0.01)
    made: Any = SimpleNamespace(
        runner=SimpleNamespace(stillness=told, log=lambda: ""), evaluation=SimpleNamespace(checks=[])
    )
    made.record = lambda *what, **figures: Trial.record(made, *what, **figures)
    made.refuse = lambda *what, **figures: Trial.refuse(made, *what, **figures)
    return made


@pytest.mark.parametrize(("broken", "rounds"), [(0, 3), (1, 3), (4, 9), (4, 41)])
def test_fewer_broken_stops_than_win_a_race_are_let_pass(broken: int, rounds: int) -> None:
    subject = trial(broken)
    stillness.check(subject, BEFORE, rounds)
    (row,) = subject.evaluation.checks
    assert row.passed and row.figures["broken_stops"] == broken and row.figures["stops"] == 200


@pytest.mark.parametrize(("broken", "rounds"), [(2, 3), (5, 9), (5, 41), (150, 41)])
def test_as_many_as_win_a_race_are_suspicious(broken: int, rounds: int) -> None:
    subject = trial(broken)
    with pytest.raises(Fault, match=f"{broken} of 200 times") as refused:
        stillness.check(subject, BEFORE, rounds)
    assert refused.value.verdict is Verdict.SUSPICIOUS
    assert [row.passed for row in subject.evaluation.checks] == [False]


def test_the_row_belongs_to_timing() -> None:
    subject = trial(0)
    stillness.check(subject, BEFORE, 9)
    assert [layer.id for layer in grouped(subject.evaluation.checks, [])] == ["timing"]
