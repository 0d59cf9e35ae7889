"""torch.compile around the module: users do that to whole models, so the module must survive inside one.

Graph breaks are allowed. A module that Dynamo cannot run at all is a reservation; wrong values are refused.
"""

from __future__ import annotations

from worker.judge.certificate.stage import SystemCheck, able, bench_of, conclude, judge_outputs
from worker.judge.trial import Trial
from worker.judge.verdict import CANNOT, Verdict

NAME = "torch.compile of the module"
_COMPILE_LIMIT_S = 180.0
"""Inductor took 20 s for a small reference on two cores."""


def check(trial: Trial) -> None:
    """Raises Fault `incorrect`, or what killed the runner."""
    bench = bench_of(trial)
    number = len(bench.cases) - 1  # not the draw that the module has already seen
    bench.write(0, number)
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    with able(doubts, "torch.compile", (*CANNOT, Verdict.TIMEOUT)):
        bench.examine("compiled", _COMPILE_LIMIT_S)
        figures = judge_outputs(trial, NAME, bench.cases[number], bench.read())
    conclude(trial, NAME, doubts, "the compiled module (graph breaks allowed) gives right results", **figures)


CHECK = SystemCheck(NAME, check)
