"""Evaluate a candidate: hand it to the judge, keep the lease alive meanwhile, store the report."""

from __future__ import annotations

import structlog

from db import candidates, duplicates, events, jobs, ledger, recovery, tracing
from db.admissions import refusal
from db.ledger import Claim
from db.models import Candidate, Job
from db.vocabulary import StopReason, Verdict
from worker import metrics, spans
from worker.heartbeat import Lease
from worker.judge.client import Judge, JudgeFailed
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import ReferenceFailed
from worker.quarantine import device_failed, suspect
from worker.requests import judge_request
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

INFRA_RETRY_S = 2.0


def evaluate(here: Runtime, claim: Claim) -> None:
    """Judge the claimed candidate and store the evaluation. No transaction is open while the judge works.

    A fault of the machine gives the work back without counting the attempt. A problem that cannot be judged at all ends
    the job. Raises Fenced, and CancelRequested when the job is cancelled meanwhile.
    """
    request = _request(here, claim)
    here.stay_with(claim.job_id)
    judge = here.judge(request.hardware)
    settings = here.settings
    try:
        with Lease(
            here.sessions, claim, interrupt=judge.abort, lease_s=settings.lease_s, renew_s=settings.renew_s
        ) as lease:
            twin = _twin(here, claim, judge, request)
            report = None if twin or lease.interrupted else judge.evaluate(request)
            broken = None
            if report is not None and not lease.interrupted and suspect(report):
                broken = device_failed(here, request.hardware)
    except ReferenceFailed as error:
        lease.check()
        _end_job(here, claim, str(error))
        return
    except JudgeFailed as failed:
        lease.check()
        metrics.judge_failed(request.hardware, request.language)
        _give_back(here, claim, device_failed(here, request.hardware) or str(failed))
        return
    if twin is not None:
        log.info("candidate.duplicate", duplicate_of=twin)
        return
    lease.check()
    assert report is not None, "an interrupted lease has raised"
    if broken is not None:
        metrics.judge_failed(request.hardware, request.language)
        _give_back(here, claim, broken)
        return
    metrics.evaluated(request.hardware, request.language, report)
    spans.judged(report)
    if report["verdict"] == Verdict.INFRA_ERROR:
        _give_back(here, claim, str(report.get("reason")))
        return
    with here.transaction() as session:
        candidates.store_evaluation(session, claim, report, worker_id=here.owner)
    log.info("candidate.evaluated", verdict=report["verdict"], speedup=report.get("speedup"))


def _request(here: Runtime, claim: Claim) -> EvaluationRequest:
    with here.transaction() as session:
        candidate = candidates.start_evaluation(session, claim)
        return judge_request(session, session.get_one(Job, claim.job_id), candidate)


def _twin(here: Runtime, claim: Claim, judge: Judge, request: EvaluationRequest) -> str | None:
    """Reject the candidate where an earlier one of its job was built into the same, and name that one.

    No device is used for it. Raises JudgeFailed.
    """
    with tracing.span("build"):
        built = judge.fingerprint(request)
    if built is None:
        return None
    with here.transaction() as session:
        events.lock_job(session, claim.job_id)
        ledger.hold(session, claim)
        candidate = session.get_one(Candidate, claim.candidate, populate_existing=True)
        candidate.artefact_hash = built
        twin = duplicates.built_twin(session, candidate, built)
        if twin is None:
            return None
        detail = f"built into the same as candidate {twin.ordinal} of this job"
        candidates.reject_duplicate(session, claim, twin, detail)
        return twin.id


def _give_back(here: Runtime, claim: Claim, reason: str) -> None:
    with here.transaction() as session:
        recovery.give_back(session, claim, reason, delay_s=INFRA_RETRY_S, count_attempt=False)
    log.warning("evaluation.returned", reason=reason)


def _end_job(here: Runtime, claim: Claim, reason: str) -> None:
    """The reference itself fails: no candidate of this job can be judged."""
    with here.transaction() as session:
        events.lock_job(session, claim.job_id)
        ledger.settle(session, claim)
        jobs.finish_job(session, claim.job_id, StopReason.ERROR, refusal(reason))
    log.error("job.problem_unusable", reason=reason)
