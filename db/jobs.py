"""Jobs: read, list, start and cancel. How they come to be is in `db.creating`, how far they are in `db.progress`, how
they end in `db.finishing`."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import func, text, update
from sqlalchemy.orm import Session

from db import events, ledger
from db.creating import (
    CreatedJob,
    IdempotencyKey,
    IdempotencyMismatch,
    NewJob,
    ProblemRefused,
    admitted_data,
    create_job,
    same_again,
)
from db.finishing import finish_job
from db.listing import JobFilter, list_jobs
from db.models import Job, Problem
from db.progress import Best, Progress, job_progress
from db.vocabulary import QUEUE_CONTROL, EventType, JobState, WorkKind

__all__ = [
    "Best",
    "CreatedJob",
    "IdempotencyKey",
    "IdempotencyMismatch",
    "Glance",
    "JobFilter",
    "JobNotFound",
    "NewJob",
    "ProblemRefused",
    "Progress",
    "admitted_data",
    "cancel_job",
    "create_job",
    "enqueue_advance",
    "fetch_job",
    "finish_job",
    "get_job",
    "get_problem",
    "glance",
    "job_progress",
    "list_jobs",
    "same_again",
    "start_job",
]

_GLANCE: Final = text("SELECT version, state FROM jobs WHERE id = :id")


class JobNotFound(LookupError):
    """There is no job with this id: list the jobs, or check that the id begins with `job_`."""

    def __str__(self) -> str:
        return str(self.__doc__)


def enqueue_advance(session: Session, job_id: str, *, priority: int = 0, delay_s: float = 0) -> None:
    """Have the job looked at. Free to call twice: one queued advance is enough for any number of changes."""
    ledger.enqueue(
        session, kind=WorkKind.ADVANCE, queue=QUEUE_CONTROL, job_id=job_id, priority=priority, delay_s=delay_s
    )


class Glance(NamedTuple):
    """What tells whether a job is still as it was."""

    version: int
    state: str


def glance(session: Session, job_id: str) -> Glance | None:
    """The version and the state of a job, when there is one with this id."""
    found = session.execute(_GLANCE, {"id": job_id}).one_or_none()
    return None if found is None else Glance(found.version, found.state)


def get_job(session: Session, job_id: str) -> Job | None:
    """The job as it is now in the database, even when the session has read it before."""
    return session.get(Job, job_id, populate_existing=True)


def fetch_job(session: Session, job_id: str) -> Job:
    """The job as it is now. Raises JobNotFound."""
    job = get_job(session, job_id)
    if job is None:
        raise JobNotFound
    return job


def get_problem(session: Session, problem_hash: str) -> Problem | None:
    """The problem with this source hash."""
    return session.get(Problem, problem_hash)


def start_job(session: Session, job: Job) -> None:
    """Move a queued job to running; its wall clock starts here. Does nothing when it already runs."""
    if job.state != JobState.QUEUED:
        return
    events.lock_job(session, job.id)
    session.execute(
        update(Job).where(Job.id == job.id).values(state=JobState.RUNNING.value, started_at=func.now()),
        execution_options={"synchronize_session": False},
    )
    events.append(session, job.id, EventType.JOB_STARTED)
    session.refresh(job)


def cancel_job(session: Session, job_id: str, reason: str | None = None) -> bool:
    """Ask for a cancel; the next advance ends the job, running work hears of it within a beat.

    False when the job had ended or was being cancelled already. Raises JobNotFound.
    """
    events.lock_job(session, job_id)
    job = fetch_job(session, job_id)
    if JobState(job.state).terminal or job.cancel_requested:
        return False
    job.cancel_requested = True
    job.state = JobState.CANCELLING.value
    session.flush()
    events.append(session, job_id, EventType.JOB_CANCEL_REQUESTED, {"reason": reason} if reason else {})
    enqueue_advance(session, job_id, priority=job.priority)
    session.refresh(job)
    return True
