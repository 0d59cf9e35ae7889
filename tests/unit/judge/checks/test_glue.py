"""What honest glue may cost, on a quiet machine and on a busy one."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from worker.judge.checks import glue


def clock_that_takes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every round trip take so long."""
    now = 0.0

    def passing(*_arguments: object) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(glue, "_round_trip", passing)
    monkeypatch.setattr(glue, "time", SimpleNamespace(perf_counter=lambda: now))


@pytest.mark.parametrize(("seconds", "slowness"), [(10e-6, 1.0), (30e-6, 1.0), (75e-6, 2.5), (1e-3, 5.0)])
def test_glue_may_take_longer_as_far_as_the_machine_is_slower(
    monkeypatch: pytest.MonkeyPatch, seconds: float, slowness: float
) -> None:
    clock_that_takes(monkeypatch, seconds)
    assert glue.slowness() == pytest.approx(slowness, rel=0.01)


def test_a_backward_may_spend_more() -> None:
    assert glue.allowance_us(backward=False, slowness=1.0) == 10.0
    assert glue.allowance_us(backward=True, slowness=2.0) == 80.0


def test_it_watches_real_glue_for_a_moment() -> None:
    start = time.perf_counter()
    assert 1.0 <= glue.slowness() <= 5.0
    assert time.perf_counter() - start >= 0.05
