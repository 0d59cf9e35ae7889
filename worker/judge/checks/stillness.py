"""Was a candidate still while others were timed, and while its new inputs were written?

It is stopped then (`worker.judge.runners.freezing`), and every stop is looked at when it ends: whoever was stopped has
used no processor time. A candidate whose timer continued it some milliseconds after each stop worked ahead on inputs
that it was to see later: 16.3 times eager instead of 2.1. Where the sandbox lets it make that timer, 158 of its 417
stops are broken.

One stop proves nothing: a thread of an honest runner may be in a long system call, which no signal interrupts, and
stop after it. But working ahead has to win half of a race's rounds, whose median counts: five of nine, the fewest that
a race has, or two of the three of a race whose calls take seconds.
"""

from __future__ import annotations

from worker.judge.runners.freezing import Stillness
from worker.judge.trial import Trial
from worker.judge.verdict import Verdict

NAME = "stopped while others are timed"
_TOO_MANY = 5
"""Broken stops, where no race was shorter than nine rounds. Honest ones had none in 405 stops of a judgement (1.0 ms of
processor time in all of them together)."""


def check(trial: Trial, before: Stillness, rounds: int) -> None:
    """`before`: its stops until timing began, in which it may be in the midst of anything. `rounds`: of its shortest
    race. Raises Fault `suspicious` when as many stops since then were broken as win that race, five at most."""
    told = trial.runner.stillness.since(before)
    too_many = min(_TOO_MANY, rounds // 2 + 1)
    figures = {"stops": told.stops, "broken_stops": told.broken, "too_many": too_many, "used_s": round(told.used_s, 6)}
    if told.broken >= too_many:
        reason = f"{told.broken} of {told.stops} times its processes went on, for {told.used_s:.3g} s of processor time"
        raise trial.refuse(NAME, Verdict.SUSPICIOUS, reason, **figures)
    trial.record(NAME, True, "it used no processor time while it was stopped, or hardly ever", **figures)
