"""A side stream: work must be launched on the caller's current stream, not on one of the module's choosing.

The inputs arrive on a non-blocking stream behind a delay of about 10 ms. A kernel on any other stream does not wait for
them and reads the NaN that lies there before.
"""

from __future__ import annotations

from worker.judge.certificate.stage import NotApplicable, SystemCheck, bench_of, judge_outputs
from worker.judge.trial import RUN_LIMIT_S, Trial

NAME = "side stream"


def check(trial: Trial) -> None:
    """Raises Fault `incorrect` when the result is not what the late inputs give."""
    if trial.device == "cpu":
        raise NotApplicable("a CPU has no streams: a call is done when it returns")
    bench = bench_of(trial)
    bench.write(0, 0)
    bench.examine("side_stream", RUN_LIMIT_S)
    figures = judge_outputs(trial, NAME, bench.cases[0], bench.read())
    trial.record(NAME, True, "right on a non-blocking stream whose inputs arrive late", **figures)


CHECK = SystemCheck(NAME, check)
