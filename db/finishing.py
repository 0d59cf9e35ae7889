"""How a job ends: its search first, and then, when the champion was certified or need not be, the job itself."""

from __future__ import annotations

from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from db import events, ledger
from db.ids import new_id
from db.models import Candidate, Certificate, Evaluation, Job, Kernel
from db.vocabulary import QUEUE_CONTROL, CandidateState, EventType, JobState, StopReason, WorkKind

LEARN_PRIORITY: Final = -1_000
"""Below the lowest that a job may ask for (-100): a job in progress comes before what one that has ended can teach."""


def end_search(session: Session, job: Job, stop_reason: StopReason) -> None:
    """Nothing more is tried: cancel what is in flight, keep the reason. The job itself goes on to its certificate."""
    events.lock_job(session, job.id)
    session.execute(ledger.SQL["cancel_search"], {"job_id": job.id})
    _cancel_candidates(session, job.id)
    session.execute(
        update(Job).where(Job.id == job.id).values(stop_reason=stop_reason.value),
        execution_options={"synchronize_session": False},
    )
    data = {"stop_reason": stop_reason.value, "best_candidate_id": job.best_candidate_id}
    events.append(session, job.id, EventType.JOB_SEARCH_ENDED, data)
    session.refresh(job)


def finish_job(session: Session, job_id: str, stop_reason: StopReason, error: str | None = None) -> bool:
    """End the job: cancel what is outstanding, keep the champion as a kernel. False when it had ended already.

    A cancelled job is `cancelled`; any other with a verified best is `succeeded` and without one `failed`.
    """
    events.lock_job(session, job_id)
    job = session.get_one(Job, job_id, populate_existing=True)
    if JobState(job.state).terminal:
        return False
    state = _final_state(job, stop_reason)
    session.execute(ledger.SQL["cancel_outstanding"], {"job_id": job_id})
    _cancel_candidates(session, job_id)
    if job.best_candidate_id is not None:
        _store_champion(session, job, job.best_candidate_id)
    job.state, job.stop_reason, job.error = state.value, stop_reason.value, error
    session.flush()
    session.execute(
        update(Job).where(Job.id == job_id).values(finished_at=func.now()),
        execution_options={"synchronize_session": False},
    )
    data = {
        "state": state.value,
        "stop_reason": stop_reason.value,
        "best_candidate_id": job.best_candidate_id,
        "best_speedup": job.best_speedup,
        "error": error,
    }
    events.append(session, job_id, EventType.JOB_FINISHED, data)
    if stop_reason is not StopReason.ERROR:
        enqueue_learn(session, job_id)
    session.refresh(job)
    return True


def set_best(session: Session, job_id: str, candidate_id: str | None, speedup: float | None) -> None:
    """Name the job's best candidate, or none. The caller holds the job's lock and writes the event."""
    session.execute(
        update(Job).where(Job.id == job_id).values(best_candidate_id=candidate_id, best_speedup=speedup),
        execution_options={"synchronize_session": False},
    )


def _final_state(job: Job, stop_reason: StopReason) -> JobState:
    if stop_reason is StopReason.CANCELLED:
        return JobState.CANCELLED
    return JobState.SUCCEEDED if job.best_candidate_id is not None else JobState.FAILED


def enqueue_learn(session: Session, job_id: str) -> None:
    """Have the job's candidates taught to later ones, behind all that somebody waits for.

    A cancelled job teaches too; one without evaluations has nothing to teach, and what is known of a job that ended in
    error (a refused problem, a reference that fails) was found by tests that cannot tell right from wrong.
    """
    if session.scalar(select(Evaluation.id).where(Evaluation.job_id == job_id).limit(1)) is None:
        return
    ledger.enqueue(session, kind=WorkKind.LEARN, queue=QUEUE_CONTROL, job_id=job_id, priority=LEARN_PRIORITY)


def _cancel_candidates(session: Session, job_id: str) -> None:
    outstanding = (CandidateState.PROPOSING.value, CandidateState.QUEUED.value, CandidateState.EVALUATING.value)
    session.execute(
        update(Candidate)
        .where(Candidate.job_id == job_id, Candidate.state.in_(outstanding))
        .values(state=CandidateState.CANCELLED.value),
        execution_options={"synchronize_session": False},
    )


def _store_champion(session: Session, job: Job, candidate_id: str) -> None:
    candidate = session.get_one(Candidate, candidate_id, populate_existing=True)
    evaluation = session.scalars(select(Evaluation).where(Evaluation.candidate_id == candidate_id)).one()
    certificate = session.scalars(select(Certificate).where(Certificate.candidate_id == candidate_id)).one_or_none()
    found = evaluation if certificate is None or certificate.speedup is None else certificate
    session.add(
        Kernel(
            id=new_id("kernel"),
            job_id=job.id,
            candidate_id=candidate_id,
            problem_hash=job.problem_hash,
            problem_name=job.problem_name,
            hardware=job.hardware,
            language=job.language,
            source=candidate.source,
            source_hash=candidate.source_hash,
            latency_us=evaluation.latency_us,
            speedup=found.speedup,
            ci95_low=found.ci95_low,
            ci95_high=found.ci95_high,
            environment=evaluation.environment,
        )
    )
