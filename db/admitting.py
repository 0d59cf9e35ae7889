"""Storing what the admission test found, with what follows for the job that had the problem examined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db import events, jobs, ledger
from db.admissions import find_admission, refusal
from db.finishing import finish_job, set_best
from db.ids import new_id
from db.ledger import Claim
from db.models import Admission, Job
from db.storable import storable_json, storable_text
from db.vocabulary import AdmissionVerdict, EventType, StopReason


def store_admission(session: Session, claim: Claim, judge_hash: str, report: Mapping[str, Any]) -> Admission:
    """Finish an `admit` with the judge's report; a refusal ends the job.

    Two workers may have examined one problem for two jobs at once: the first report is kept and both go by it. Raises
    Fenced, and ValueError for a verdict that is not in the vocabulary.
    """
    events.lock_job(session, claim.job_id)
    ledger.settle(session, claim)
    job = jobs.fetch_job(session, claim.job_id)
    values = {
        "id": new_id("adm"),
        "problem_hash": job.problem_hash,
        "hardware": job.hardware,
        "judge_hash": judge_hash,
        "verdict": AdmissionVerdict(report["verdict"]).value,
        "reason": storable_text(report["reason"]) if report.get("reason") else None,
        "report": storable_json(report),
    }
    session.execute(insert(Admission).values(values).on_conflict_do_nothing())
    admission = find_admission(session, job.problem_hash, job.hardware, judge_hash)
    assert admission is not None
    _apply(session, job, admission, reused=False)
    return admission


def reuse_admission(session: Session, claim: Claim, judge_hash: str) -> Admission | None:
    """Finish an `admit` with what another job had found meanwhile; None, and nothing changes, when there is nothing.

    Raises Fenced.
    """
    events.lock_job(session, claim.job_id)
    ledger.hold(session, claim)
    job = jobs.fetch_job(session, claim.job_id)
    admission = find_admission(session, job.problem_hash, job.hardware, judge_hash)
    if admission is not None:
        ledger.settle(session, claim)
        _apply(session, job, admission, reused=True)
    return admission


def _apply(session: Session, job: Job, admission: Admission, *, reused: bool) -> None:
    session.execute(
        update(Job).where(Job.id == job.id).values(admission_id=admission.id),
        execution_options={"synchronize_session": False},
    )
    if admission.verdict != AdmissionVerdict.REFUSED:
        events.append(session, job.id, EventType.PROBLEM_ADMITTED, jobs.admitted_data(admission, reused=reused))
        jobs.enqueue_advance(session, job.id, priority=job.priority)
        return
    data = {"admission_id": admission.id, "reason": admission.reason, "reused": reused}
    events.append(session, job.id, EventType.PROBLEM_REFUSED, data)
    # Whatever was accepted meanwhile was accepted by tests that cannot tell right from wrong.
    set_best(session, job.id, None, None)
    finish_job(session, job.id, StopReason.ERROR, refusal(admission.reason))
