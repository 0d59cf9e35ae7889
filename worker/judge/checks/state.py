"""What a call leaves in the model: running statistics move as the reference's do, and nothing else moves."""

from __future__ import annotations

import copy

import torch

from worker.judge.checks.values import judge_case
from worker.judge.numerics.case import Case
from worker.judge.numerics.comparison import compare
from worker.judge.numerics.measures import slice_error
from worker.judge.numerics.tolerance import tolerance
from worker.judge.reference.problem import Instance, call_reference
from worker.judge.trial import RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import Verdict

NAME = "state"
_UPDATES = 8
"""As many as an optimizer makes in eight steps: a kernel that counts them must still be right afterwards."""


def check(trial: Trial) -> None:
    """On the smallest workload, from a state that both sides know. Raises Fault `incorrect`."""
    exhibit = trial.exhibits.workloads[0]
    instance, case = exhibit.instance, exhibit.cases[0]
    bench = trial.benches[exhibit.name]
    start = {name: tensor.detach().clone() for name, tensor in instance.model.state_dict().items()}
    if not start:
        return
    eager, exact = _after_a_call(instance, case, torch.float32), _after_a_call(instance, case, torch.float64)
    for _update in range(_UPDATES):
        bench.load_state(SUBJECT, start, RUN_LIMIT_S)
    bench.write(0, 0)
    outputs = bench.run(SUBJECT, 0, RUN_LIMIT_S)
    found = bench.read_state(SUBJECT, list(start), RUN_LIMIT_S)
    judge_case(trial, f"{exhibit.name}/after {_UPDATES} updates", case, outputs)
    for name, before in start.items():
        reason = _difference(found[name], before, eager[name], exact[name])
        if reason:
            raise trial.refuse(f"{NAME}/{name}", Verdict.INCORRECT, f"after a call {name!r} {reason}")
    moving = [name for name, before in start.items() if not torch.equal(before, eager[name])]
    detail = f"{', '.join(moving)} move as the reference's do" if moving else "parameters and buffers stay as they are"
    trial.record(NAME, True, detail)


def _difference(found: torch.Tensor, before: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """What is wrong with one parameter or buffer after a call, or nothing."""
    if torch.equal(before, eager):
        return "" if torch.equal(found, before) else "has changed, which the reference's does not"
    if not eager.is_floating_point():
        return "" if torch.equal(found, eager) else "is not what the reference makes of it"
    truth = exact.to(torch.float64)
    compared = compare(found, truth, eager, tolerance(slice_error(eager, truth)[0], 0.0, eager.dtype))
    return "" if compared.passed else f"is not what the reference makes of it: {compared.reason}"


def _after_a_call(instance: Instance, case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The reference's state after one call on a case, computed in the problem's own types or in float64."""
    twin = copy.deepcopy(instance.model)
    inputs = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in case.inputs)
    if dtype == torch.float64:
        twin = twin.to(dtype)
        inputs = tuple(
            value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for value in inputs
        )
    call_reference(instance.callable(twin), inputs)
    return dict(twin.state_dict())
