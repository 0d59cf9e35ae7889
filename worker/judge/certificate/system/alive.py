"""Two results alive at once: the second call must not write into what the first returned."""

from __future__ import annotations

from worker.judge.certificate.stage import NotApplicable, bench_of, judge_outputs
from worker.judge.trial import RUN_LIMIT_S, SUBJECT, Trial

NAME = "two results alive at once"


def check(trial: Trial) -> None:
    """Call on one draw, then on another, and only then read the first result. Raises Fault `incorrect`."""
    bench = bench_of(trial)
    if len(bench.cases) < 2:
        raise NotApplicable("this workload has only one draw of inputs")
    bench.write(0, 0)
    bench.write(1, 1)
    figures = judge_outputs(trial, NAME, bench.cases[0], bench.run(SUBJECT, 0, RUN_LIMIT_S, then=[1]))
    trial.record(NAME, True, "the first result is unchanged by a second call on other inputs", **figures)
