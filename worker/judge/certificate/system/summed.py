"""The gradient of a plain sum, taken twice from one graph, as `loss.backward(retain_graph=True)` does.

The cotangent of a sum is one number for all elements (its strides are 0): a backward that reads it as a matrix of its
own reads what lies behind it. And one that uses what forward kept as room for its results is right once.
"""

from __future__ import annotations

import torch

from worker.judge.certificate.stage import (
    NotApplicable,
    SystemCheck,
    able,
    bench_of,
    conclude,
    exhibit_of,
    judge_outputs,
)
from worker.judge.trial import RUN_LIMIT_S, Trial

NAME = "gradients of a sum, twice"


def check(trial: Trial) -> None:
    """The second gradients must be right. Raises Fault `incorrect`; whoever refuses gets a reservation."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    instance = exhibit.instance
    if not instance.backward:
        raise NotApplicable("no workload has a backward")
    inputs = exhibit.cases[0].inputs
    ones = (torch.ones_like(value) for value in inputs[instance.forward_inputs :])
    case = exhibit.truth.case("sum", (*inputs[: instance.forward_inputs], *ones))
    bench.write(0, 0)
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    with able(doubts, "a second backward"):
        bench.examine("summed", RUN_LIMIT_S)
        figures = judge_outputs(trial, NAME, case, bench.read())
    conclude(trial, NAME, doubts, "the second gradients from one graph are right", **figures)


CHECK = SystemCheck(NAME, check, trained=True)
