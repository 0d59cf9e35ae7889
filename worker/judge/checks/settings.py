"""A model leaves the process as it found it: precision flags, default types, gradient mode and random state.

A kernel that turns on TF32, or seeds the generator, changes what the rest of a training run computes.
"""

from __future__ import annotations

from typing import Any

from worker.judge.runners.sessions import Runner
from worker.judge.trial import Trial
from worker.judge.verdict import Verdict

NAME = "process settings"
_LIMIT_S = 20.0
_RANDOM = "random state"
_MAY_CHANGE_AT_LOAD = frozenset({_RANDOM, "flush denormal"})
"""Weights are drawn when a model is made. Flush-to-zero is set for the loading thread by every library that g++ 12
links with -ffast-math (crtfastmath), which is not the candidate's doing."""


def read(runner: Runner, *, advance: bool = False) -> dict[str, Any]:
    """The runner's settings now. `advance` its random generator first."""
    return runner.ask({"op": "settings", "advance": advance}, _LIMIT_S)


def check_loaded(trial: Trial, before: dict[str, Any]) -> None:
    """Compare with the settings before the candidate was loaded. Raises Fault `suspicious`."""
    now = read(trial.runner)
    _refuse(trial, [name for name in before if name not in _MAY_CHANGE_AT_LOAD and before[name] != now.get(name)])


def check_called(trial: Trial, before: dict[str, Any]) -> None:
    """Compare with the settings before the calls in between. Raises Fault `suspicious`."""
    now = read(trial.runner)
    _refuse(trial, [name for name in before if before[name] != now.get(name)])
    trial.record(NAME, True, "unchanged by loading and by calls")


def _refuse(trial: Trial, changed: list[str]) -> None:
    if changed:
        reason = f"the candidate changes settings of the whole process: {', '.join(changed)}"
        raise trial.refuse(NAME, Verdict.SUSPICIOUS, reason)
