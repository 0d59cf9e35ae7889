"""Autocast: inside `torch.autocast` the module's contract must hold, as far as the reference's own does.

A module that mixes torch operations with a kernel of its own may be handed bf16 by the former and read it as fp32 in
the latter. Values are compared with the fp64 truth, and the error may be what the reference's own becomes under
autocast, times four, if that is more than the usual threshold.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from worker.judge.certificate.stage import SystemCheck, bench_of
from worker.judge.numerics.case import Case
from worker.judge.numerics.comparison import compare
from worker.judge.numerics.measures import slice_error
from worker.judge.numerics.tolerance import Tolerance
from worker.judge.reference.problem import call_reference
from worker.judge.trial import RUN_LIMIT_S, Trial
from worker.judge.verdict import Verdict

NAME = "autocast"
_SLACK = 4.0


def check(trial: Trial) -> None:
    """One call under bf16 autocast. Raises Fault `incorrect`."""
    bench = bench_of(trial)
    case = bench.cases[0]
    kind = torch.device(trial.device).type
    with torch.autocast(kind, dtype=torch.bfloat16):
        honest = call_reference(bench.instance.call, tuple(_copy(value) for value in case.inputs))
    bench.write(0, 0)
    bench.examine("autocast", RUN_LIMIT_S, dtype="bfloat16")
    figures: dict[str, float | str] = {}
    for index, output in enumerate(bench.read()):
        limit = _limit(case, index, honest[index])
        found = compare(output, case.exact(index), honest[index].to(output.dtype), limit)
        figures = {"error": found.error, "threshold": limit.threshold, "output": index}
        if not found.passed:
            reason = f"output {index} is wrong inside torch.autocast: {found.reason}"
            raise trial.refuse(NAME, Verdict.INCORRECT, reason, **figures)
    trial.record(NAME, True, "the contract holds inside torch.autocast(bfloat16)", **figures)


def _limit(case: Case, index: int, honest: torch.Tensor) -> Tolerance:
    usual = case.tolerances[index]
    if not honest.is_floating_point():
        return usual
    error, _where = slice_error(honest.to(torch.float64), case.exact(index))
    return replace(usual, threshold=max(usual.threshold, _SLACK * error))


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


CHECK = SystemCheck(NAME, check)
