"""Outputs against the fp64 truth on every workload and family; what must not change did not; repeats agree."""

from __future__ import annotations

import torch

from worker.judge.checks import settings
from worker.judge.exhibits import Exhibit
from worker.judge.numerics.case import Case
from worker.judge.numerics.twin import same_bits
from worker.judge.runners.bench import Workbench
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import Verdict
from worker.runner.values import tensors_of

_REPEATS = 3
"""Extra calls on the first case of each workload: a race that shows in a quarter of the calls survives 4 of them with
0.3, and there are at least three workloads, other checks call again, and timed outputs are checked too."""

_FLUSHING = "flush denormal"
"""A setting that `checks.settings` knows. That a kernel flushes its own subnormal results is allowed (CUDA's fast math
does, and 30 * (1 - e) / (1 + e) is zero below 1e-16); that a process does from then on is not."""


def check(trial: Trial) -> None:
    """Smallest workload first. Leaves a bench for every workload in `trial.benches`. Raises Fault."""
    for exhibit in trial.exhibits.workloads:
        bench = _make_bench(trial, exhibit)
        limit_s = FIRST_RUN_LIMIT_S[trial.request.language]
        for number, case in enumerate(exhibit.cases):
            slot = number % bench.slots
            bench.write(slot, number)
            outputs = bench.run(SUBJECT, slot, limit_s)
            judge_case(trial, exhibit.name, case, outputs)
            check_untouched(trial, exhibit, bench, slot)
            limit_s = RUN_LIMIT_S
        _check_repeats(trial, exhibit, bench)
        if trial.device != "cpu":
            torch.cuda.empty_cache()  # comparisons leave 5 to 20 GB of free blocks (H200), which others could use
    _check_result_outlives_next_call(trial, trial.exhibits.workloads[0])
    if settings.read(trial.runner)[_FLUSHING]:
        reason = (
            "the candidate turns on flush-to-zero for the whole process (torch.set_flush_denormal, or its MXCSR bits)"
        )
        raise trial.refuse(settings.NAME, Verdict.SUSPICIOUS, reason)


def make_benches(trial: Trial) -> None:
    """A bench for every workload in `trial.benches`, with what is judged called once: nothing is compared. Raises
    Fault."""
    for exhibit in trial.exhibits.workloads:
        bench = _make_bench(trial, exhibit)
        bench.write(0, 0)
        bench.run(SUBJECT, 0, FIRST_RUN_LIMIT_S[trial.request.language])


def judge_case(trial: Trial, where: str, case: Case, outputs: tuple[torch.Tensor, ...]) -> None:
    """Compare every output of a case with its truth and record the figures. Raises Fault `incorrect`."""
    for index, found in enumerate(case.judge(outputs)):
        name = f"{where}/{case.family}/{case.names[index]}"
        limit = case.tolerances[index]
        figures: dict[str, float | str] = {
            "error": found.error,
            "threshold": limit.threshold,
            "accept_error": limit.accept_error,
            "reject_error": limit.reject_error,
            "sees_precision": str(limit.sees_precision),
            "worst_slice": found.worst_slice,
        }
        if found.bias is not None:
            figures |= {"bias": found.bias, "bias_limit": found.bias_limit}
        if not found.passed:
            raise trial.refuse(name, Verdict.INCORRECT, found.reason, **figures)
        trial.record(name, True, "", **figures)


def check_untouched(trial: Trial, exhibit: Exhibit, bench: Workbench, slot: int) -> None:
    """The inputs are what the judge wrote, and nothing was written beside them. Raises Fault `incorrect`."""
    allowed = {name for name, free in zip(exhibit.instance.arguments, exhibit.cases[0].changed, strict=False) if free}
    changed = [
        name for name in (_argument(exhibit, index) for index in bench.changed_inputs(slot)) if name not in allowed
    ]
    if changed:
        reason = f"the candidate changed its input {changed[0]!r}"
        raise trial.refuse(f"{exhibit.name}/inputs", Verdict.INCORRECT, reason)
    if bench.overrun():
        reason = "the candidate wrote outside its inputs and outputs"
        raise trial.refuse(f"{exhibit.name}/guard zones", Verdict.ILLEGAL_ACCESS, reason)


def _make_bench(trial: Trial, exhibit: Exhibit) -> Workbench:
    if trial.workshop is None:
        trial.workshop = trial.exhibits.workshop()
    where = trial.device, exhibit.slots
    bench = Workbench(trial.runner, exhibit.instance, exhibit.cases, *where, workshop=trial.workshop)
    trial.benches[exhibit.name] = bench
    bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
    return bench


def _argument(exhibit: Exhibit, tensor_index: int) -> str:
    """The name of the argument that holds the n-th tensor (a list argument holds several)."""
    for name, value in zip(exhibit.instance.arguments, exhibit.instance.like, strict=True):
        held = len(tensors_of((value,)))
        if tensor_index < held:
            return name
        tensor_index -= held
    return f"number {tensor_index}"


def _check_repeats(trial: Trial, exhibit: Exhibit, bench: Workbench) -> None:
    """More calls on the same inputs must be right too; atomics may change bits, not correctness."""
    case = exhibit.cases[0]
    first: tuple[torch.Tensor, ...] | None = None
    differing = 0
    for _repeat in range(_REPEATS):
        bench.write(0, 0)  # again: a reference that works in place lets the candidate do so
        again = bench.run(SUBJECT, 0, RUN_LIMIT_S)
        for index, found in enumerate(case.judge(again)):
            if not found.passed:
                reason = f"another call on the same inputs is wrong: {found.reason}"
                raise trial.refuse(f"{exhibit.name}/repeats", Verdict.NONDETERMINISTIC, reason, output=index)
        first = first or again
        differing += any(not same_bits(one, other) for one, other in zip(first, again, strict=True))
    detail = "bits differ between calls, within the tolerance" if differing else "bitwise equal"
    trial.record(f"{exhibit.name}/repeats", True, detail, calls=_REPEATS + 1)


def _check_result_outlives_next_call(trial: Trial, exhibit: Exhibit) -> None:
    """A result that the caller still holds must survive the next calls, 2 to 6 of them, and 24 to 48 of the smallest
    workload: no buffer of the module may be handed out, nor several in turn."""
    if len(exhibit.cases) < 2:
        return
    bench, case = trial.benches[exhibit.name], exhibit.cases[0]
    bench.write(0, 0)
    bench.write(1, 1)
    calls = trial.rng.randint(24, 48) if exhibit is trial.exhibits.workloads[0] else trial.rng.randint(2, 6)
    outputs = bench.run(SUBJECT, 0, RUN_LIMIT_S, then=[1] * calls)
    for found in case.judge(outputs):
        if not found.passed:
            reason = "a result changes when the module is called again: outputs must be memory of their own"
            if exhibit.instance.backward:
                reason += ", and what the backward needs kept for each forward (save_for_backward)"
            raise trial.refuse(f"{exhibit.name}/two results", Verdict.INCORRECT, reason)
    trial.record(f"{exhibit.name}/two results", True, "the first result survives later calls")
