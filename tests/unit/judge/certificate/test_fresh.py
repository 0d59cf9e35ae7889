"""Does a second judgement in fresh processes agree with the first?"""

from __future__ import annotations

import pytest

from worker.judge.certificate.document import Outcome
from worker.judge.certificate.layers import outcome
from worker.judge.certificate.system.fresh import compare, disagreement
from worker.judge.report import Evaluation
from worker.judge.verdict import Check, Verdict


def judged(speedup: float | None, half_width: float = 0.02, verdict: Verdict = Verdict.OK) -> Evaluation:
    interval = (speedup * (1 - half_width), speedup * (1 + half_width)) if speedup else None
    checks = [Check("generality/rows 7", True), Check("timed outputs", True)]
    return Evaluation("c", verdict, "why", checks, timed=True, speedup=speedup, ci95=interval)


@pytest.mark.parametrize(
    ("second", "expected"),
    [(1.5, Outcome.PASSED), (1.55, Outcome.PASSED), (1.7, Outcome.RESERVATION), (1.3, Outcome.RESERVATION)],
)
def test_speeds_agree_within_both_intervals_and_three_percent(second: float, expected: Outcome) -> None:
    values, speed = compare(judged(1.5), judged(second))
    assert outcome(values) is Outcome.PASSED
    assert outcome(speed) is expected


def test_wide_intervals_excuse_more() -> None:
    apart, allowed = disagreement(judged(1.5, half_width=0.2), judged(1.8, half_width=0.2))
    assert apart < allowed
    apart, allowed = disagreement(judged(1.5, half_width=0.01), judged(1.8, half_width=0.01))
    assert apart > allowed


def test_a_wrong_value_the_second_time_fails_and_a_failed_machine_does_not() -> None:
    (wrong,) = compare(judged(1.5), judged(None, verdict=Verdict.INCORRECT))
    assert outcome(wrong) is Outcome.FAILED
    assert wrong.detail == "incorrect: why"
    (machine,) = compare(judged(1.5), judged(None, verdict=Verdict.INFRA_ERROR))
    assert outcome(machine) is Outcome.RESERVATION


def test_the_shapes_that_were_drawn_anew_are_counted() -> None:
    values, _speed = compare(judged(1.5), judged(1.5))
    assert values.figures["other_shapes"] == 1
