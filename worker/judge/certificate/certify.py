"""Certify a finalist: system checks, the fresh re-measure, the roofline, and the document that holds them all.

    certificate = certify(parts, request, evaluation)      # called by the referee, in the judge process

A candidate whose judgement was not `ok`, or not timed, gets a document too: one that says `certified: false` and why,
with the evidence at hand and no system checks.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from worker.judge.certificate import compose
from worker.judge.certificate.document import Certificate, Outcome, Roofline
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.roofline import roofline
from worker.judge.certificate.stage import NotApplicable, SystemCheck, staged
from worker.judge.certificate.system import (
    alive,
    autocast,
    compiled,
    construction,
    control,
    copies,
    fresh,
    graphs,
    leak,
    modes,
    partial_backward,
    relaid,
    rewritten,
    sanitizers,
    streams,
    summed,
    threads,
    untrained_gradients,
)
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.verdict import Check, Fault, Verdict

log = structlog.get_logger()

_BESIDE_THE_JUDGE = (
    alive.CHECK,
    autocast.CHECK,
    summed.CHECK,
    partial_backward.CHECK,
    rewritten.CHECK,
    untrained_gradients.CHECK,
    modes.CHECK,
    copies.CHECK,
    construction.CHECK,
    leak.CHECK,
)
"""The judge computes for these, and for the training: one at a time, since its random numbers are one process's."""
_IN_RUNNERS = (graphs.CHECK, streams.CHECK, compiled.CHECK, threads.CHECK, relaid.CHECK)
CHECKS = (*_BESIDE_THE_JUDGE, *_IN_RUNNERS, *sanitizers.CHECKS)
"""Each gets a runner of its own."""


@dataclass(slots=True)
class SystemReport:
    """What the system checks found."""

    rows: list[Check] = field(default_factory=list)
    verdict: Verdict = Verdict.OK
    reason: str = ""
    again: Evaluation | None = None
    """The fresh re-measure."""

    def refuse(self, verdict: Verdict, reason: str) -> None:
        """Keep the first reason to refuse."""
        if self.verdict is Verdict.OK:
            self.verdict, self.reason = verdict, reason


def certify(
    parts: RefereeParts,
    request: EvaluationRequest,
    evaluation: Evaluation,
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
) -> Certificate:
    """The certificate of a candidate that was just judged. `now` is the clock for the date on it."""
    started, held_s = time.monotonic(), parts.lease.held_s
    system, roof = SystemReport(), None
    problem = compose.problem_of(parts.exhibits)
    if evaluation.verdict is Verdict.OK and evaluation.timed:
        roof = _roofline(parts, evaluation)  # while all workloads are there
        parts.narrow()
        system = examine(parts, request, evaluation)
    certificate = compose.compose(
        compose.Evidence(
            parts, problem, request, evaluation, system.rows, system.verdict, system.reason, system.again, roof
        ),
        issued_at=now().isoformat(timespec="seconds"),
        certify_s=time.monotonic() - started,
        held_s=parts.lease.held_s - held_s,
    )
    log.info(
        "candidate.certified",
        candidate=request.candidate_id,
        certified=certificate.certified,
        reason=certificate.reason,
        reservations=len(certificate.reservations),
        wall_s=round(time.monotonic() - started, 1),
    )
    return certificate


def examine(parts: RefereeParts, request: EvaluationRequest, evaluation: Evaluation) -> SystemReport:
    """The system checks, the fresh re-measure and the control."""
    report = check_system(parts, request)
    report.again = parts.again()
    report.rows += [_system(row) for row in fresh.compare(evaluation, report.again)]
    if parts.control is not None:
        report.rows.append(_system(control.check(parts.control(), parts.device)))
    if report.again.verdict is not Verdict.OK:  # also where the machine failed: nothing is certified without it
        report.refuse(report.again.verdict, f"a fresh judgement failed: {report.again.reason}")
    return report


def check_system(parts: RefereeParts, request: EvaluationRequest) -> SystemReport:
    """Every system check. A failed one does not stop the others: the report is for people who will mend the kernel."""
    training = [SystemCheck("training dynamics", parts.training.check)] if parts.training is not None else []
    found: dict[str, SystemReport] = {}
    took_s: dict[str, float] = {}

    def run_lane(checks: Sequence[SystemCheck]) -> None:
        for check in checks:
            began = time.monotonic()
            found[check.name] = SystemReport()
            run_check(parts, request, check, found[check.name])
            took_s[check.name] = round(time.monotonic() - began, 1)

    watched = [(check,) for check in sanitizers.CHECKS]  # at once: nobody is timed meanwhile
    _side_by_side(run_lane, ([*_BESIDE_THE_JUDGE, *training], _IN_RUNNERS, *watched), parts.device)
    log.info("certificate.checked", candidate=request.candidate_id, took_s=took_s)
    report = SystemReport()
    for check in (*CHECKS, *training):
        report.rows += found[check.name].rows
        report.refuse(found[check.name].verdict, found[check.name].reason)
    return report


def _side_by_side(
    run: Callable[[Sequence[SystemCheck]], None], lanes: Sequence[Sequence[SystemCheck]], device: str
) -> None:
    """On a GPU, where a runner mostly starts, loads and compiles; on a CPU, whose cores they use, one after another."""
    if device == "cpu":
        for lane in lanes:
            run(lane)
        return
    mine, *others = lanes
    with ThreadPoolExecutor(len(others)) as threads:
        running = [threads.submit(run, lane) for lane in others]
        run(mine)
        for each in running:
            each.result()


def run_check(parts: RefereeParts, request: EvaluationRequest, check: SystemCheck, report: SystemReport) -> None:
    """One check in a runner of its own; its rows and its reason to refuse go into the report."""
    rows: list[Check] = []
    try:
        with staged(parts, request, unlimited=check.unlimited, alone=check.alone, trained=check.trained) as trial:
            rows = trial.evaluation.checks
            check.ask(trial)
    except NotApplicable as why:
        rows.append(Check(check.name, True, str(why), {"outcome": str(Outcome.NOT_APPLICABLE)}))
    except Fault as fault:
        if fault.verdict is Verdict.INFRA_ERROR:
            detail = f"the machine failed: {fault.reason}"
            rows.append(Check(check.name, False, detail, {"outcome": str(Outcome.RESERVATION)}))
        elif parts.crowded_out(fault):  # no reservation: a candidate can say so, too, and would be spared the check
            report.refuse(Verdict.INFRA_ERROR, f"{check.name}: {fault.reason}")
        else:
            if not any(not row.passed for row in rows):
                rows.append(Check(check.name, False, fault.reason))
            report.refuse(fault.verdict, fault.reason)
    report.rows += [_system(row) for row in rows]


def _system(row: Check) -> Check:
    return Check(f"system: {row.name}", row.passed, row.detail, row.figures)


def _roofline(parts: RefereeParts, evaluation: Evaluation) -> Roofline | None:
    with parts.lease.exclusive():
        return roofline(parts.exhibits.workloads, evaluation, parts.device)
