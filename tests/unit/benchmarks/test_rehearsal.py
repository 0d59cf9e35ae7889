"""The rehearsal: what it may never show, and that its figures are of what it shows."""

from __future__ import annotations

import random

import pytest

from benchmarks.rehearsal import trace
from benchmarks.rehearsal.run import Plan, rehearse
from benchmarks.rehearsal.stages import STAGES, Span, Stages, operators
from benchmarks.rehearsal.summary import overlaps, summarise
from benchmarks.rehearsal.trace import Interval

SHORT = Stages(
    build=Span(0.5, 1.0),
    compile=Span(0.2, 0.4),
    modes=2,
    turns=(1, 2),
    inputs=Span(0.1, 0.3),
    prepare=Span(0.1, 0.3),
    start=Span(0.1, 0.2),
    load=Span(0.3, 0.5),
    checks=(3, 4),
    baseline=Span(0.1, 0.2),
    race=Span(0.3, 0.6),
    thorough=Span(0.3, 0.6),
    control=Span(0.3, 0.5),
    gap=Span(0.1, 0.3),
    system=Span(0.3, 0.6),
    leak=Span(0.2, 0.4),
    training=Span(1.0, 2.0),
    again_modes=1,
)


def test_nobody_works_beside_who_has_the_device_alone_and_all_judges_finish() -> None:
    found = rehearse(Plan(judges=3, seconds=2000.0, seed=1, scale=0.1, stages=SHORT, operators=3))
    assert not overlaps(found)
    assert sum(each.kind == trace.DONE for each in found) == 3
    kinds = {each.kind for each in found}
    assert {trace.ALONE, trace.TURN, trace.SHARED, trace.ROOM, trace.AHEAD, trace.SYSTEM, trace.AGAIN} <= kinds


def test_it_ends_when_the_time_is_up() -> None:
    found = rehearse(Plan(judges=2, seconds=10.0, seed=1, scale=0.1))
    assert found and not any(each.kind == trace.DONE for each in found)
    assert max(each.start for each in found) < 310.0, "what waits is let through when the others leave"


def did(kind: str, start: float, end: float, judge: int = 0) -> Interval:
    return Interval(kind, judge, main=True, start=start, end=end)


def test_work_at_a_time_with_who_has_the_device_alone_is_seen() -> None:
    beside = [did(trace.SHARED, 0, 3), did(trace.SHARED, 1, 2, judge=1)]
    assert not overlaps([*beside, did(trace.ALONE, 3, 4), did(trace.TURN, 4, 5)])
    assert overlaps([*beside, did(trace.ALONE, 2.5, 4)])
    assert overlaps([did(trace.ALONE, 0, 5), did(trace.SHARED, 1, 2)])
    assert overlaps([did(trace.ALONE, 0, 5), did(trace.ALONE, 1, 2), did(trace.SHARED, 4, 6)])


def test_the_figures_are_of_the_run() -> None:
    found = [
        did(trace.SHARED, 0, 2),
        did(trace.SHARED, 1, 2, judge=1),
        did(trace.TO_BE_ALONE, 1, 2.5, judge=2),
        did(trace.ALONE, 2.5, 6.5, judge=2),
        did(trace.DONE, 6.5, 6.5, judge=2),
        did(trace.ROOM, 6.5, 12, judge=1),
    ]
    summary = summarise(found, seconds=10.0)
    assert summary.certified_at == [6.5]
    assert list(summary.shares.values()) == pytest.approx([0.4, 0.0, 0.2, 0.05, 0.35])
    assert summary.beside == pytest.approx(1.5)
    assert (summary.changes, summary.change_s) == (1, 0.5)
    assert summary.judge_s[trace.ROOM] == 3.5, "no longer than the run"


def test_what_an_operator_takes_is_known() -> None:
    for operator in operators(random.Random(0), 20):
        assert 40 < STAGES.alone_s(operator) < STAGES.path_s(operator) < 500
