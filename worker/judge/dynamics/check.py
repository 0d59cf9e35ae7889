"""The check of a finalist: find the problem's seat, train with the candidate in it, compare, say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from worker.judge.dynamics.rehearsal import NULL_RUNS_AGAIN, Rehearsal
from worker.judge.dynamics.report import DynamicsReport
from worker.judge.dynamics.seats import NoSeat, Operation, Seat, find_seat
from worker.judge.exhibits import Exhibit, Exhibits
from worker.judge.runners.bench import Workbench
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import Verdict

NAME = "training dynamics"
_MAX_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
"""Inputs of the workload that is trained on."""


def rehearse(
    exhibits: Exhibits, seed: int, steps: int | None = None, pause: Callable[[], None] = lambda: None
) -> Rehearsal:
    """The honest runs for a problem; keep them for its next finalist. Raises NoSeat when it fits no transformer."""
    return Rehearsal(seat_of(exhibits), seed, steps=steps, pause=pause)


def seat_of(exhibits: Exhibits) -> Seat:
    """The seat at the sizes of the workload that says most: 16-bit types first, then the smallest. Raises NoSeat."""
    declared = exhibits.problem.spec.seat
    if declared is not None and declared.kind == "none":
        raise NoSeat("the problem says that it fits none")
    reason = "every workload is too large to train with"
    for exhibit in sorted(exhibits.workloads, key=_preference):
        named = declared is not None and declared.workload is not None
        if named and declared is not None and exhibit.name != declared.workload:
            continue
        if exhibit.input_bytes > _MAX_BYTES[torch.device(exhibits.device).type]:
            continue
        case = exhibit.cases[0]
        try:
            outputs = tuple(map(case.honest, range(len(case.eager))))
            return find_seat(declared.kind if declared else None, exhibit.instance, case.inputs, outputs)
        except NoSeat as missing:
            reason = str(missing)
    raise NoSeat(reason)


def _preference(exhibit: Exhibit) -> tuple[int, int]:
    floats = [v.dtype.itemsize for v in exhibit.instance.like if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return min(floats, default=8), exhibit.input_bytes


def check(trial: Trial, rehearsal: Rehearsal) -> DynamicsReport:
    """Train with the candidate. Records one row per optimiser and one for the bias; raises Fault when it fails."""
    exhibit = next(each for each in trial.exhibits.workloads if each.instance is rehearsal.seat.instance)
    bench = Workbench(
        trial.runner, exhibit.instance, exhibit.cases[:1], trial.device, 1, name=f"{exhibit.name}/dynamics"
    )
    try:
        bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
        report = rehearsal.judge(_called(bench, FIRST_RUN_LIMIT_S[trial.request.language]), trial.runner.give_way)
    finally:
        bench.close()
    _record(trial, report)
    if not report.passed:
        raise trial.refuse(NAME, Verdict.INCORRECT, report.sentence)
    trial.record(NAME, True, report.sentence)
    return report


def not_applicable(trial: Trial, missing: NoSeat) -> None:
    """Say openly that this problem was not trained with, and why."""
    trial.record(NAME, True, f"not applicable: {missing}", outcome="not applicable")


def _called(bench: Workbench, limit_s: float) -> Operation:
    def operation(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        bench.put(0, arguments)
        return bench.run(SUBJECT, 0, limit_s)

    return operation


def _record(trial: Trial, report: DynamicsReport) -> None:
    for found in report.distances:
        figures: dict[str, float | str] = {
            "statistic": found.of_limit,
            "threshold": 1.0,
            "unit": "of its limit",
            "loss_sd": found.loss,
            "drift_sd": found.drift,
            "gradient_norm_sd": found.norm,
        }
        detail = ""
        if found.first is not None:
            detail = f"with new text, weights and {NULL_RUNS_AGAIN} honest runs: at first {found.first.of_limit:.2f}"
        trial.record(f"{NAME}: {found.optimiser}", found.passed, detail, **figures)
    bias = report.bias
    trial.record(f"{NAME}: gradient bias", bias.passed, "", statistic=bias.beta, threshold=bias.limit)


class Training:
    """Training with one problem's finalists: the honest runs are made once, at the first."""

    def __init__(self, exhibits: Exhibits, seed: int) -> None:
        self._exhibits, self._seed = exhibits, seed
        self._rehearsal: Rehearsal | None = None
        self.report: dict[str, Any] | None = None
        """Of the last finalist, as JSON; None when the problem fits no seat."""

    @property
    def workload(self) -> str | None:
        """The name of the one that is trained with, or None."""
        try:
            return seat_of(self._exhibits).instance.workload.name
        except NoSeat:
            return None

    def check(self, trial: Trial) -> None:
        """Train with the candidate, or say why not. Raises Fault `incorrect`."""
        self.report = None
        try:
            self._rehearsal = self._rehearsal or rehearse(self._exhibits, self._seed, pause=trial.runner.give_way)
        except NoSeat as missing:
            not_applicable(trial, missing)
            return
        self.report = check(trial, self._rehearsal).to_json()

    def release(self) -> None:
        """Let go of the honest runs and their data; the report stays."""
        self._rehearsal = None
