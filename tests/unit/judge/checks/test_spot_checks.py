"""What stops in calls like the timed ones say of a candidate."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from worker.judge.checks import spot_checks
from worker.judge.checks.sampled import Call
from worker.judge.checks.spot_checks import Found, SpotChecks
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
    monkeypatch.setattr(spot_checks, "Process", lambda *_args: SimpleNamespace(threads=lambda: next(left)))
    monkeypatch.setattr(spot_checks.quiet, "runner_tree", lambda _pid: [1])
    monkeypatch.setattr(spot_checks.glue, "slowness", lambda: 1.0)
    made = SpotChecks(trial, [], LISTED)
    assert not made.begun("even")
    made.timed("even", 1e-3, 1e-4)
    for _stop in found:
        made.stop("even", random.Random(1), late=late)
    return made


def test_torch_in_most_stops_is_suspicious(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fault) as caught:
        checks_of(trial, monkeypatch, [[TORCH]] * 20 + [[MINE]] * 4).check()
    assert caught.value.verdict == Verdict.SUSPICIOUS
    assert "libtorch_cpu.so 20" in caught.value.reason
    assert not trial.evaluation.checks[-1].passed


def test_own_code_and_now_and_then_glue_is_right(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[MINE, MINE]] * 20 + [[TORCH]] + [[]] * 3).check()
    (row,) = trial.evaluation.checks
    assert row.passed
    assert row.figures["own_samples/even"] == 40 and row.figures["stops/even"] == 24


def test_a_few_stops_decide_nothing(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[TORCH]] * 5).check()
    assert trial.evaluation.checks[-1].passed


def test_own_code_while_results_are_copied_is_suspicious(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[MINE]] * 2 + [[TORCH]] * 4, late=True).check()
    with pytest.raises(Fault) as caught:
        checks_of(trial, monkeypatch, [[MINE]] * 3 + [[TORCH]] * 3, late=True).check()
    assert "3 of 6 stops after a timed call was over" in caught.value.reason


def test_a_runner_goes_on_after_each_stop(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks_of(trial, monkeypatch, [[MINE]] * 3)
    assert trial.runner.frozen == [True, False] * 3


def test_where_nothing_can_be_read_no_more_calls_are_stopped(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checks_of(trial, monkeypatch, [])
    assert made.wanted("even") > 0

    def closed(*_args: Any) -> None:
        raise Unreadable("/proc/PID/maps: no")

    monkeypatch.setattr(spot_checks, "Process", closed)
    made.stop("even", random.Random(1), late=False)
    assert made.wanted("even") == 0
    made.check()
    assert "not made on this machine" in trial.evaluation.checks[-1].detail


def test_enough_is_enough() -> None:
    found = Found(LISTED["even"], glue_us=0.0, own=12, foreign=Counter(a=11), stops=30)
    assert found.wanted
    found.own += 1
    assert not found.wanted
    assert not Found(LISTED["even"], glue_us=0.0, stops=50, late_stops=14).wanted


def test_what_glue_and_the_list_take_of_a_call_is_not_held_against_it() -> None:
    call = Call(others_us=150.0, wall_us=1000.0, own_us=800.0)
    found = Found(call, glue_us=100.0, calls_s=[1e-3], stops=40, foreign=Counter(a=15))
    assert found.beyond == pytest.approx(5.0)
    found.calls_s.extend([1e-4] * 2)
    assert found.beyond == 0.0, "a call that is glue alone"
