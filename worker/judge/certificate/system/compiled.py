"""torch.compile around the module: users do that to whole models, so the module must survive inside one.

Graph breaks are allowed. A module that Dynamo cannot run at all is a reservation; wrong values are refused.
"""

from __future__ import annotations

from worker.judge.certificate.stage import CANNOT, bench_of, judge_outputs, made
from worker.judge.trial import Trial
from worker.judge.verdict import Verdict

NAME = "torch.compile of the module"
_COMPILE_LIMIT_S = 180.0
"""Inductor took 20 s for a small reference on two cores."""


def check(trial: Trial) -> None:
    """Raises Fault `incorrect`, or what killed the runner."""
    bench = bench_of(trial)
    number = len(bench.cases) - 1  # not the draw that the module has already seen
    bench.write(0, number)
    if not made(trial, NAME, "torch.compile", "compiled", _COMPILE_LIMIT_S, (*CANNOT, Verdict.TIMEOUT)):
        return
    figures = judge_outputs(trial, NAME, bench.cases[number], bench.read())
    trial.record(NAME, True, "the compiled module (graph breaks allowed) gives right results", **figures)
