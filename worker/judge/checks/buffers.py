"""Buffers that the reference moves (running statistics) must move alike in the candidate."""

from __future__ import annotations

import copy

import torch

from worker.judge.numerics import compare, slice_error, tolerance
from worker.judge.problem import Instance, call_reference
from worker.judge.trial import RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.truth import Case
from worker.judge.verdict import Verdict

NAME = "buffers"


def check(trial: Trial) -> None:
    """One call on the smallest workload, from buffers that both sides know. Raises Fault `incorrect`."""
    exhibit = trial.exhibits.workloads[0]
    instance, case = exhibit.instance, exhibit.cases[0]
    start = {name: buffer.clone() for name, buffer in instance.model.named_buffers()}
    eager = _moved(instance, case, torch.get_default_dtype())
    moving = [name for name, buffer in eager.items() if not torch.equal(buffer, start[name])]
    if not moving:
        return
    exact = _moved(instance, case, torch.float64)
    bench = trial.benches[exhibit.name]
    bench.load_state(SUBJECT, start, RUN_LIMIT_S)
    bench.write(0, 0)
    bench.run(SUBJECT, 0, RUN_LIMIT_S)
    found = bench.read_state(SUBJECT, moving, RUN_LIMIT_S)
    for name in moving:
        truth, honest = exact[name].to(torch.float64), eager[name]
        limit = tolerance(slice_error(honest, truth)[0], 0.0, honest.dtype)
        compared = compare(found[name], truth, honest, limit)
        if not compared.passed:
            reason = f"after a call {name!r} is not what the reference makes of it: {compared.reason}"
            raise trial.refuse(f"{NAME}/{name}", Verdict.INCORRECT, reason, error=compared.error)
    trial.record(NAME, True, f"{', '.join(moving)} move as the reference's do")


def _moved(instance: Instance, case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The reference's buffers after one call on a case, computed in `dtype` (float64) or in the problem's own."""
    twin = copy.deepcopy(instance.model)
    inputs = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in case.inputs)
    if dtype == torch.float64:
        twin = twin.to(dtype)
        inputs = tuple(
            value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for value in inputs
        )
    call_reference(instance.callable(twin), inputs)
    return dict(twin.named_buffers())
