"""When a race is over: how well the difference must be known."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from worker.judge.timing.clocks import Plan, Sample
from worker.judge.timing.pace import Pace
from worker.judge.timing.races import _Race


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
