"""What stops in calls like the timed ones say of a candidate."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.checks import spot_checks
from worker.judge.checks.sampled import Call
from worker.judge.checks.spot_checks import Found, SpotChecks, Stop
from worker.judge.runners.pointers import Unreadable, Whose
from worker.judge.trial import Trial
from worker.judge.verdict import Fault, Verdict

LISTED = {"even": Call(others_us=0.0, wall_us=1000.0, own_us=990.0)}
TORCH, MINE = (Whose.FOREIGN, "libtorch_cpu.so"), (Whose.OWN, "7.so")


class Runner:
    """Where its threads are found is given."""

    _pid = 1

    def __init__(self) -> None:
        self.frozen: list[bool] = []

    def freeze(self) -> None:
        self.frozen.append(True)

    def thaw(self) -> None:
        self.frozen.append(False)


@pytest.fixture
def trial() -> Any:
    made = SimpleNamespace(
        runner=Runner(),
        request=SimpleNamespace(own_kernel_share=0.9),
        benches={"even": SimpleNamespace(instance=SimpleNamespace(backward=False))},
        evaluation=SimpleNamespace(checks=[]),
    )
    made.record = lambda *what, **figures: Trial.record(made, *what, **figures)
    made.refuse = lambda *what, **figures: Trial.refuse(made, *what, **figures)
    made.runner.log = lambda: ""
    return made


def checks_of(
    trial: Any, monkeypatch: pytest.MonkeyPatch, found: list[list[tuple[Whose, str]]], *, late: bool = False
) -> SpotChecks:
    """After a race in which each stop found one of `found`."""
    left = iter(found)
    monkeypatch.setattr(spot_checks.sampled, "threads_of", lambda *_args: next(left))
    monkeypatch.setattr(spot_checks.glue, "slowness", lambda: 1.0)
    made = SpotChecks(trial, [], LISTED)
    assert made.share("even") == 0.0, "nobody knows how long a call is"
    made.timed("even", 1e-3, 1e-4)
    for _stop in found:
        Stop(made, "even", 0.5, late)()
    return made


def test_torch_in_most_stops_is_suspicious(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fault) as caught:
        checks_of(trial, monkeypatch, [[TORCH]] * 20 + [[MINE]] * 4).check()
    assert caught.value.verdict == Verdict.SUSPICIOUS
    assert "libtorch_cpu.so 20" in caught.value.reason
    assert not trial.evaluation.checks[-1].passed


def test_own_code_and_now_and_then_glue_is_right(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[MINE] * 16] * 20 + [[TORCH]] + [[]] * 3).check()
    (row,) = trial.evaluation.checks
    assert row.passed
    assert row.figures["own_stops/even"] == 20 and row.figures["stops/even"] == 24


def test_a_few_stops_decide_nothing(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[TORCH]] * 5).check()
    assert trial.evaluation.checks[-1].passed


def test_where_few_stops_found_anybody_more_are_wanted(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wants(found: list[list[tuple[Whose, str]]], call_s: float = 5e-3) -> bool:
        made = checks_of(trial, monkeypatch, found)
        made.timed("even", call_s, 1e-4)
        made.timed("even", call_s, 1e-4)
        return made.wants_more("even")

    assert not SpotChecks(trial, [], LISTED).wants_more("even"), "nobody knows how long a call is"
    assert wants([[TORCH]] * 10 + [[MINE]] * 10)
    assert not wants([[TORCH]] * 12 + [[MINE]] * 12)
    assert not wants([[TORCH]], call_s=1e-3), "such calls are over when a stop comes"
    assert wants([[]] * 60 + [[MINE]] * 5)
    assert not wants([[]] * 70 + [[MINE]] * 5), "where they find nobody no more will"


def test_own_code_while_results_are_copied_is_suspicious(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[MINE]] * 2 + [[TORCH]] * 4, late=True).check()
    with pytest.raises(Fault) as caught:
        checks_of(trial, monkeypatch, [[MINE]] * 3 + [[TORCH]] * 3, late=True).check()
    assert "3 of 6 stops after a timed call was over" in caught.value.reason


def test_a_runner_goes_on_after_each_stop(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[MINE]] * 3)
    assert trial.runner.frozen == [True, False] * 3


def test_what_could_be_read_before_and_not_now_is_no_verdict(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checks_of(trial, monkeypatch, [])

    def closed(*_args: Any) -> None:
        raise Unreadable("/proc/PID/maps: no")

    monkeypatch.setattr(spot_checks.sampled, "threads_of", closed)
    with pytest.raises(Fault) as caught:
        Stop(made, "even", 0.5, late=False)()
    assert caught.value.verdict == Verdict.INFRA_ERROR
    assert trial.runner.frozen[-1] is False


def test_a_stop_counts_as_one_however_many_threads_it_finds() -> None:
    found = Found(LISTED["even"])
    found.add([TORCH] * 16, late=False)
    found.add([MINE] * 3 + [TORCH], late=False)
    found.add([(Whose.NEUTRAL, "libc.so.6")], late=False)
    assert (found.stops, found.own, sum(found.foreign.values())) == (3, 0.75, 1.25)


def test_any_call_may_be_stopped_to_the_end_of_a_race() -> None:
    found = Found(LISTED["even"], calls_s=[1e-3])
    assert found.share == 0.6
    found.own, found.foreign = 13.0, {"a": 11.0}
    assert found.share == 0.3
    assert Found(LISTED["even"], calls_s=[0.3]).share == 0.3


def test_stops_come_at_any_moment_and_some_while_results_are_copied(
    trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rng = checks_of(trial, monkeypatch, []), random.Random(1)
    stops = [made.next_stop("even", rng) for _stop in range(200)]
    assert 30 < sum(stop.late for stop in stops) < 70
    assert min(stop.moment for stop in stops) < 0.1 and max(stop.moment for stop in stops) > 0.9


def test_what_glue_and_the_list_take_of_a_call_is_not_held_against_it() -> None:
    call = Call(others_us=150.0, wall_us=1000.0, own_us=800.0)
    found = Found(call, glue_us=100.0, calls_s=[1e-3], stops=40, foreign={"a": 15.0})
    assert found.beyond == pytest.approx(5.0)
    found.calls_s.extend([1e-4] * 2)
    assert found.beyond == 0.0, "a call that is glue alone"
