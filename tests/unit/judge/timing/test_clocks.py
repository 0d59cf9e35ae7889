"""In which order a runner on a CPU gets its values, runs and is called."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from worker.judge.timing.clocks import HostClock, Plan, Round, Sample


class _Told:
    """Whatever is asked of it is written down."""

    def __init__(self, done: list[str], answers: dict[str, Any]) -> None:
        self._done, self._answers = done, answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            raise AttributeError(name)

        def call(*_arguments: Any, **_named: Any) -> Any:
            self._done.append(name)
            return self._answers[name]

        return call


class _Filled:
    """Fresh values of which the seeds are written down."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.numbers: list[int] = []

    def choose(self) -> tuple[Any, int]:
        return None, 100 + len(self.seeds)

    def fill(self, _tensors: Any, _source: Any, seed: int) -> None:
        self.seeds.append(seed)

    def mix_into(self, _tensors: Any, number: int) -> None:
        self.numbers.append(number)

    def inputs(self, _source: Any, seed: int, numbers: list[int]) -> tuple[Any, ...]:
        return seed, *numbers


def _clock(runner: Any, fresh: Any, eviction: Any) -> HostClock:
    bench = _Told([], {"slot_tensors": [torch.zeros(1)], "poison": None, "read": (torch.zeros(1),)})
    vars(bench)["runner"] = runner
    contender: Any = _Told([], {})
    vars(contender)["bench"] = bench
    return HostClock(contender, fresh, eviction, kept=True, trusted=False)


def test_a_call_that_is_repeated_has_values_of_its_own_which_can_be_made_again() -> None:
    """On the same ones a candidate that only mends what changed is as fast as it likes."""
    waited_s = iter(range(100))  # it always had to wait for a core
    runner: Any = _Told([], {"freeze": None, "thaw": None, "ring": 1e-3, "asleep": True})
    vars(runner)["waited_s"] = lambda: float(next(waited_s))
    fresh = _Filled()
    clock = _clock(runner, fresh, _Told([], {"flush": None}))
    source: Any = None
    rng = random.Random(1)
    stops: list[int] = []
    sample = clock.sample(Round(source, 10, 200, 0), rng, lambda: stops.append(len(fresh.seeds)))
    assert len(fresh.seeds) == len(set(fresh.seeds)) > 1
    assert stops == list(range(len(fresh.seeds))), "before each of them"
    given = dict(zip(fresh.numbers, fresh.seeds, strict=True))
    assert clock.inputs(sample.turn) == (given[sample.turn.nonce], sample.turn.nonce)
    clock.outputs(sample.turn)
    assert fresh.seeds[-1] == given[sample.turn.nonce]


def test_a_call_is_stopped_within_or_while_its_result_is_copied() -> None:
    rung: list[bool] = []
    runner: Any = _Told([], {"freeze": None, "thaw": None, "asleep": True})
    vars(runner)["ring"] = lambda *_what, then=None, **_how: rung.append(then is not None) or 1e-3
    clock = _clock(runner, _Filled(), _Told([], {"flush": None}))
    source: Any = None
    for late in (False, True):
        clock.interrupted(Round(source, 1, 2, 0), lambda: None, late=late)
    assert rung == [True, False, False, True]


def test_what_nobody_could_know_is_written_when_the_runner_runs_and_just_before_it_is_called() -> None:
    done: list[str] = []
    runner = _Told(done, {"freeze": None, "thaw": None, "ring": 1e-3, "waited_s": 0.0, "asleep": True})
    fresh: Any = _Told(done, {"fill": None, "mix_into": None})
    eviction: Any = _Told(done, {"flush": None})
    clock = _clock(runner, fresh, eviction)
    source: Any = None
    assert clock.sample(Round(source, 1, 2, 0), random.Random(1)).call_s == 1e-3
    assert done == [
        *("freeze", "fill", "flush", "waited_s"),
        *("thaw", "mix_into", "asleep", "ring", "ring", "freeze", "waited_s"),
    ]


def test_inputs_are_written_over_when_a_call_is_over_and_before_its_result_is_asked_for() -> None:
    done: list[str] = []
    runner = _Told(done, {"freeze": None, "thaw": None, "ring": 1e-3, "asleep": True})
    fresh: Any = _Told(done, {"fill": None, "mix_into": None, "choose": (None, 3), "fill_inputs": None})
    clock = _clock(runner, fresh, _Told(done, {"flush": None}))
    source: Any = None
    clock.written_over(Round(source, 1, 2, 0))
    assert done == [
        *("freeze", "fill", "flush", "thaw", "mix_into", "asleep", "ring"),
        *("freeze", "choose", "fill_inputs", "thaw", "ring", "freeze"),
    ]


def test_nothing_is_subtracted_from_a_call_that_did_not_find_the_runner_asleep() -> None:
    plan = Plan(keep_s=[1e-4], null_s=[3e-4])
    turn: Any = None
    sleeping, awake = (Sample(1e-3, 1e-4, 0.0, turn, None, awake=awake) for awake in (False, True))
    assert plan.seconds_per_call(sleeping) == pytest.approx(7e-4)
    assert plan.seconds_per_call(awake) == pytest.approx(1e-3)
