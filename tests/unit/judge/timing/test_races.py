"""When a race is over: how well the difference must be known, who is out before, and when it is run again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from worker.judge.timing import stats
from worker.judge.timing.clocks import DeviceClock, HostClock, Plan, Round, Sample
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.pace import Pace
from worker.judge.timing.races import Timings, _Race
from worker.judge.verdict import Fault, Verdict

_TURN: Any = None
"""Nothing here asks for the values of a call."""


def _race() -> _Race:
    race = _Race([], cast(Any, None), random.Random(0), Pace(1.0, 1.0, 99), None, lambda: None)
    race._plan = Plan(keep_s=[0.0], null_s=[0.0])
    return race


def _rounds(ratio: float, noise: float, count: int = 24) -> list[dict[int, Sample]]:
    """Rounds of a candidate of 1 ms and a baseline `ratio` times slower, alternately too slow and too fast."""
    signs = [1 - 2 * (number % 2) for number in range(count)]
    times = [(1e-3, 1e-3 * ratio * (1 + sign * noise)) for sign in signs]
    return [{index: Sample(seconds, 0.0, 0.0, _TURN, None) for index, seconds in enumerate(pair)} for pair in times]


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


def test_more_rounds_fit_without_the_baselines_that_are_out() -> None:
    race = _race()
    race._clocks = cast(Any, [SimpleNamespace(cost_s=0.02) for _contender in range(5)])
    for racing, fitting in (([0, 1, 2, 3, 4], 10), ([0, 1], 20)):  # three rounds are of all
        race._racing = racing
        assert race._fitting(1.0) == fitting
    assert (race._fitting(0.1), race._fitting(9.9)) == (9, 99)
    race._clocks = cast(Any, [SimpleNamespace(cost_s=0.5) for _contender in range(3)])
    assert race._fitting(9.9) == 3


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
        super().__init__(clocks, exhibit, random.Random(0), Pace(1.0, 1.0, 9), None, lambda: None)
        self._overheads_s = overheads_s

    def _warm_up(self, fresh: Fresh) -> None: ...

    def _cool(self) -> None: ...

    def _round(self, fresh: Fresh, number: int) -> dict[int, Sample]:
        if number == 0:
            self._overhead_s = self._overheads_s.pop(0)
        self._plan.null_s.append(self._overhead_s)
        self._plan.keep_s.append(0.0)
        return {0: Sample(16e-3, 0.0, 0.0, _TURN, None), 1: Sample(16.1e-3, 0.0, 0.0, _TURN, None)}


def test_calls_that_were_over_too_soon_are_timed_again_before_anything_is_said_of_them() -> None:
    timings = _Device([17e-3, 15e-3]).run(cast(Any, None))
    assert timings.latency_us("candidate") == pytest.approx(1000)


def test_calls_that_are_always_over_too_soon_are_suspicious() -> None:
    with pytest.raises(Fault, match="sooner than the waiting") as caught:
        _Device([17e-3, 17e-3]).run(cast(Any, None))
    assert caught.value.verdict is Verdict.SUSPICIOUS


_EVICTIONS_S = 2e-3
"""What a chain takes without its calls."""


class _OnDevice(DeviceClock):
    """Takes so many microseconds in each round, the last of them from then on."""

    def __init__(self, name: str, times_us: Sequence[float]) -> None:
        self.contender, self.cost_s, self._times_us, self._taken = (
            cast(Any, SimpleNamespace(name=name)),
            0.05,
            times_us,
            0,
        )

    def sample(self, turn: Round, calls: int, rng: random.Random) -> Sample:
        return self._next(_EVICTIONS_S)

    def proven(self) -> bool:
        return True

    def _next(self, overhead_s: float) -> Sample:
        time_us = self._times_us[min(self._taken, len(self._times_us) - 1)]
        self._taken += 1
        return Sample(overhead_s + time_us * 1e-6, 0.0, overhead_s, _TURN, (torch.zeros(1),))


class _OnHost(HostClock):
    """The same on a CPU."""

    def __init__(self, name: str, times_us: Sequence[float]) -> None:
        self._device = _OnDevice(name, times_us)
        self.contender, self.cost_s = self._device.contender, self._device.cost_s

    def sample(self, turn: Round, rng: random.Random, before: Callable[[], None] = lambda: None) -> Sample:
        return self._device._next(0.0)


class _Field(_Race):
    """A race of contenders whose times are dictated; who ran in each round, in which order, is written down."""

    def __init__(
        self,
        times_us: dict[str, Sequence[float]],
        pace: Pace | None = None,
        kind: type[_OnDevice | _OnHost] = _OnDevice,
    ) -> None:
        exhibit = cast(Any, SimpleNamespace(name="only", retained=1))
        clocks: list[HostClock | DeviceClock] = [kind(name, each) for name, each in times_us.items()]
        super().__init__(clocks, exhibit, random.Random(0), pace or Pace(1.0, 1.0, 12), None, lambda: None)
        self.order: list[list[str]] = []
        self.checked = 0

    def _warm_up(self, fresh: Fresh) -> None: ...

    def _cool(self) -> None: ...

    def _check_held_result(self, fresh: Fresh) -> None: ...

    def _check_outputs(self, mine: Sample, trusted: Sample, fresh: Fresh, *, full: bool) -> None:
        assert mine.outputs is not None and trusted.outputs is not None
        self.checked += 1

    def _activate(self, clock: HostClock | DeviceClock, fresh: Fresh) -> None:
        self.order[-1].append(clock.contender.name)

    def _round(self, fresh: Fresh, number: int) -> dict[int, Sample]:
        self.order.append([])
        return super()._round(fresh, number)

    def timed(self) -> Timings:
        return self.run(cast(Any, SimpleNamespace(choose=lambda: (None, 0))))


def _lengths(timings: Timings) -> dict[str, int]:
    return {name: len(samples) for name, samples in timings.samples_us.items()}


def test_a_baseline_that_is_plainly_slower_leaves_after_three_rounds_and_keeps_the_median_of_these() -> None:
    race = _Field({"candidate": [900], "eager": [1000], "slow": [1900, 1300, 1500, 100], "near": [1190]})
    timings = race.timed()
    assert _lengths(timings) == {"candidate": 9, "eager": 9, "slow": 3, "near": 9}
    assert timings.baselines_us == pytest.approx({"eager": 1000, "slow": 1500, "near": 1190})
    assert [sorted(names) for names in race.order[3:]] == [["candidate", "eager", "near"]] * 6
    assert len({tuple(names) for names in race.order[3:]}) > 1, "the order is still drawn"


def test_neither_the_candidate_nor_the_trusted_baseline_ever_leaves() -> None:
    timings = _Field({"candidate": [9000], "eager": [5000], "compile": [1000], "library": [3000]}).timed()
    assert _lengths(timings) == {"candidate": 9, "eager": 9, "compile": 9, "library": 3}


def test_a_baseline_that_kept_up_in_one_of_three_rounds_stays() -> None:
    timings = _Field({"candidate": [900], "eager": [1000], "late": [2000, 2000, 1100, 2000]}).timed()
    assert _lengths(timings)["late"] == 9


def test_a_difference_that_is_within_the_scatter_of_a_chain_puts_nobody_out() -> None:
    """Calls that take half as long again as the fastest one's, in a chain that is 2.4 % longer."""
    timings = _Field({"candidate": [90], "eager": [100], "other": [150]}).timed()
    assert _lengths(timings)["other"] == 9


def test_on_a_cpu_all_contenders_stay() -> None:
    timings = _Field({"candidate": [900], "eager": [1000], "slow": [5000]}, kind=_OnHost).timed()
    assert _lengths(timings)["slow"] == 9


def test_what_is_saved_buys_more_rounds_where_the_difference_is_not_known() -> None:
    """Four contenders of 50 ms and 4 s: 20 rounds, but 37 where 34 are of two of them."""
    field = {"candidate": [900.0], "eager": [1000.0], "slow": [5000.0], "slower": [9000.0]}
    pace = Pace(0.1, 4.0, 99)
    assert _lengths(_Field(field, pace).timed()) == {"candidate": 9, "eager": 9, "slow": 3, "slower": 3}
    noisy = field | {"candidate": [900.0 + 700 * (number % 2) for number in range(99)]}
    assert _lengths(_Field(noisy, pace).timed()) == {"candidate": 37, "eager": 37, "slow": 3, "slower": 3}


def test_results_are_let_go_of_when_they_are_checked() -> None:
    race = _Field({"candidate": [900], "eager": [1000]})
    rounds = race._all_rounds(cast(Any, SimpleNamespace(choose=lambda: (None, 0))))
    assert race.checked == len(rounds) >= 9
    assert all(sample.outputs is None for samples in rounds for sample in samples.values())


def test_a_race_that_is_run_again_has_all_contenders() -> None:
    race = _Field({"candidate": [100] * 9 + [900], "eager": [1000], "slow": [5000] * 3 + [1000]})
    in_doubt = iter([True, False, False])
    race._impossible = lambda rounds: next(in_doubt)  # type: ignore[method-assign]
    timings = race.timed()
    assert _lengths(timings)["slow"] == 9
    assert timings.latency_us("slow") == pytest.approx(1000)
    assert timings.latency_us("candidate") == pytest.approx(900)


def test_a_baseline_that_left_is_compared_within_its_rounds_and_is_never_the_fastest() -> None:
    """The machine takes twice as long from the fourth round on."""
    slower = [1.0] * 3 + [2.0] * 6
    timings = _Field(
        {
            "candidate": [1000 * each for each in slower],
            "eager": [1200 * each for each in slower],
            "left": [1500 * each for each in slower],
        }
    ).timed()
    assert timings.latency_us("left") < timings.latency_us("eager")
    assert timings.fastest(timings.baselines) == "eager"
    ratios = {name: stats.ratio(timings.logs(name, "candidate")) for name in timings.baselines}
    assert ratios == pytest.approx({"eager": 1.2, "left": 1.5})
    assert len(timings.logs("left", "candidate")) == 3


def test_rounds_that_the_candidate_did_not_run_in_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        Timings("only", {"candidate": [1.0], "eager": [1.0, 1.0]}).logs("eager", "candidate")


def test_the_interval_that_ends_a_race_is_that_against_a_baseline_that_is_still_in() -> None:
    rounds = _rounds(1.0, 0.005)
    for samples in rounds[:3]:  # twice as fast as the candidate: half as fast would be known well enough
        samples[2] = Sample(0.5e-3, 0.0, 0.0, _TURN, None)
    race = _race()
    assert race._too_wide(rounds) is race._too_wide(_rounds(1.0, 0.005)) is False
