"""CUDA graphs: capture one call, then replay it on inputs that the judge changed in between.

A module that reads a value back to the host, or caches by pointer, either cannot be captured (said as a reservation) or
replays what it once computed (refused).
"""

from __future__ import annotations

from worker.judge.certificate.stage import NotApplicable, SystemCheck, able, bench_of, conclude, judge_outputs
from worker.judge.trial import Trial

NAME = "CUDA graph capture and replay"
_CAPTURE_LIMIT_S, _REPLAY_LIMIT_S = 60.0, 20.0


def check(trial: Trial) -> None:
    """Every case of the workload is replayed through one captured graph. Raises Fault `incorrect`."""
    if trial.device == "cpu":
        raise NotApplicable("a CPU has no CUDA graphs")
    bench = bench_of(trial)
    bench.write(0, 0)
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    with able(doubts, "capture"):
        bench.examine("capture", _CAPTURE_LIMIT_S)
    for number in () if doubts else reversed(range(len(bench.cases))):  # the captured draw comes last, as all differ
        bench.write(0, number)
        bench.examine("replay", _REPLAY_LIMIT_S)
        figures = judge_outputs(trial, NAME, bench.cases[number], bench.read())
    replays = len(bench.cases)
    conclude(trial, NAME, doubts, f"{replays} replays on changed inputs, all right", replays=replays, **figures)


CHECK = SystemCheck(NAME, check)
