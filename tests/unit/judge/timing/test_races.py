"""When a race is over: how well the difference must be known, and when it is run again."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from worker.judge.timing.clocks import DeviceClock, Plan, Sample
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.pace import Pace
from worker.judge.timing.races import _Race
from worker.judge.verdict import Fault, Verdict


def _race() -> _Race:
    race = _Race([], cast(Any, None), random.Random(0), Pace(1.0, 1.0, 99), None)
    race._plan = Plan(keep_s=[0.0], null_s=[0.0])
    return race


def _rounds(ratio: float, noise: float, count: int = 24) -> list[list[Sample]]:
    """Rounds of a candidate of 1 ms and a baseline `ratio` times slower, alternately too slow and too fast."""
    signs = [1 - 2 * (number % 2) for number in range(count)]
    times = [(1e-3, 1e-3 * ratio * (1 + sign * noise)) for sign in signs]
    return [[Sample(seconds, 0.0, 0.0, 0, None) for seconds in pair] for pair in times]


@pytest.mark.parametrize(
    ("ratio", "noise", "too_wide"),
    [
        (1.0, 0.005, False),
        (1.0, 0.05, True),  # is it faster at all?
        (1.1, 0.05, True),
        (2.0, 0.05, False),  # twice as fast is known to a tenth of it
        (0.5, 0.05, False),  # and so is half as fast
        (2.0, 0.5, True),
    ],
)
def test_rounds_go_on_until_the_difference_is_known_to_a_tenth_of_it_or_to_a_percent(
    ratio: float, noise: float, too_wide: bool
) -> None:
    assert _race()._too_wide(_rounds(ratio, noise)) is too_wide


@pytest.mark.parametrize(("workloads", "wanted"), [(1, 0.01), (4, 0.02)])
def test_of_several_workloads_each_may_be_known_less_well_since_their_mean_is_what_counts(
    workloads: int, wanted: float
) -> None:
    shared = Pace(1.0, 2.0, 99, wanted=0.01).shared_by(workloads)
    assert shared == Pace(1.0, 2.0, 99, wanted=pytest.approx(wanted))


class _Device(_Race):
    """A race on a device whose overheads are dictated: one list of seconds for each time that they are measured."""

    def __init__(self, overheads_s: list[float]) -> None:
        clocks = []
        for name in ("candidate", "eager"):
            clock = object.__new__(DeviceClock)
            clock.contender, clock.cost_s = cast(Any, SimpleNamespace(name=name)), 0.1
            clocks.append(clock)
        exhibit = cast(Any, SimpleNamespace(name="only"))
        super().__init__(clocks, exhibit, random.Random(0), Pace(1.0, 1.0, 9), None)
        self._overheads_s = overheads_s

    def _warm_up(self, fresh: Fresh) -> None: ...

    def _cool(self) -> None: ...

    def _round(self, fresh: Fresh, number: int) -> list[Sample]:
        if number == 0:
            self._overhead_s = self._overheads_s.pop(0)
        self._plan.null_s.append(self._overhead_s)
        self._plan.keep_s.append(0.0)
        return [Sample(16e-3, 0.0, 0.0, 0, None), Sample(16.1e-3, 0.0, 0.0, 0, None)]


def test_calls_that_were_over_too_soon_are_timed_again_before_anything_is_said_of_them() -> None:
    timings = _Device([17e-3, 15e-3]).run(cast(Any, None))
    assert timings.latency_us("candidate") == pytest.approx(1000)


def test_calls_that_are_always_over_too_soon_are_suspicious() -> None:
    with pytest.raises(Fault, match="sooner than the waiting") as caught:
        _Device([17e-3, 17e-3]).run(cast(Any, None))
    assert caught.value.verdict is Verdict.SUSPICIOUS
