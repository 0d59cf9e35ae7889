"""Jobs: create (once per idempotency key), read, list and cancel. How far they are is in `db.progress`, how they end
in `db.finishing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from db import events, ledger, tracing
from db.admissions import ProblemRefused, current_admission, raise_if_refused
from db.finishing import finish_job
from db.ids import new_id
from db.judging import new_judge_seed
from db.listing import JobFilter, list_jobs
from db.models import Admission, IdempotencyKeyRow, Job, Problem
from db.progress import Best, Progress, job_progress
from db.storable import storable_text
from db.vocabulary import QUEUE_CONTROL, EventType, JobState, SearchPolicy, WorkKind, target_queue

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

IDEMPOTENCY_TTL: Final = timedelta(hours=24)

# Written out, as all that every submission runs: for SQLAlchemy to build and look up a statement takes longer than for
# Postgres to run it.
_STORE_PROBLEM: Final = text(
    """
    INSERT INTO problems (hash, name, source, spec) VALUES (:hash, :name, :source, :spec)
    ON CONFLICT (hash) DO NOTHING
    """
).bindparams(bindparam("spec", type_=JSONB(none_as_null=True)))
_LOCK_KEY: Final = text("SELECT pg_advisory_xact_lock(hashtextextended('idempotency ' || :key, 0))")
_GLANCE: Final = text("SELECT version, state FROM jobs WHERE id = :id")


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated request. `problem_hash` is the hash of the reference source; a budget of None is no limit."""

    problem_hash: str
    problem_name: str
    problem_source: str
    hardware: str
    language: str
    budget_candidates: int
    problem_spec: Mapping[str, Any] | None = None
    budget_usd: Decimal | None = None
    budget_wall_s: float | None = None
    budget_gpu_s: float | None = None
    budget_calls: int | None = None
    budget_tokens: int | None = None
    target_speedup: float | None = None
    stagnation: int | None = None
    models: tuple[str, ...] = ()
    diagnosis_model: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    seed: int = 0
    own_kernel_share: float = 0.9
    search_policy: str = SearchPolicy.DEFAULT.value
    admit: bool = False
    """Whether the problem is to be examined, if the judge in service has not done so yet."""
    certify: bool = False
    """Whether the champion is to be certified before the job ends."""
    parent_id: str | None = None
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The client's key, and a hash of the request that it stands for."""

    key: str
    request_hash: str


@dataclass(frozen=True, slots=True)
class CreatedJob:
    """The job, and whether it had been created by an earlier request with the same key."""

    job: Job
    replayed: bool


class IdempotencyMismatch(Exception):
    """This Idempotency-Key was used for another request: send a new key, or the same body as before."""

    def __str__(self) -> str:
        return str(self.__doc__)


class JobNotFound(LookupError):
    """There is no job with this id: list the jobs, or check that the id begins with `job_`."""

    def __str__(self) -> str:
        return str(self.__doc__)


def create_job(
    session: Session,
    new: NewJob,
    idempotency: IdempotencyKey | None = None,
    allow: Callable[[Session, str | None], None] | None = None,
) -> CreatedJob:
    """Store the job, its event, the examination of its problem and its first advance; the doorbells are left in the
    session.

    Of concurrent requests with one key the first creates and the others are told `replayed`. `allow` may refuse, by
    raising, what is not a replay; it is given the API key.
    Raises IdempotencyMismatch when the key was used for another request within 24 hours, and ProblemRefused when the
    judge has refused the problem on this hardware.
    """
    if idempotency is not None and (earlier := _replay(session, idempotency)) is not None:
        return CreatedJob(earlier, replayed=True)
    if allow is not None:
        allow(session, new.key_id)
    known = current_admission(session, new.problem_hash, new.hardware)
    raise_if_refused(known)
    _store_problem(session, new)
    job = _insert_job(session, new, known)
    if idempotency is not None:
        session.add(IdempotencyKeyRow(key=idempotency.key, request_hash=idempotency.request_hash, job_id=job.id))
    data = {"problem": new.problem_name, "hardware": new.hardware, "language": new.language}
    events.append(session, job.id, EventType.JOB_CREATED, data)
    if known is not None:
        events.append(session, job.id, EventType.PROBLEM_ADMITTED, admitted_data(known, reused=True))
    elif new.admit:
        # Before any proposal of this job, so that it is the first that a free worker of this hardware takes.
        queue = target_queue(new.hardware)
        ledger.enqueue(session, kind=WorkKind.ADMIT, queue=queue, job_id=job.id, priority=new.priority)
    enqueue_advance(session, job.id, priority=new.priority)
    session.refresh(job)
    return CreatedJob(job, replayed=False)


def same_again(session: Session, job: Job, key_id: str | None) -> NewJob:
    """A request for what this job asked for, under another API key; the inputs of its judge will be other ones."""
    problem = session.get_one(Problem, job.problem_hash)
    same = {each.name: getattr(job, each.name) for each in fields(NewJob) if hasattr(job, each.name)}
    again = {
        "problem_source": problem.source,
        "problem_spec": problem.spec,
        "models": tuple(job.models),
        "parent_id": job.id,
        "key_id": key_id,
    }
    return NewJob(**same | again)


def _replay(session: Session, idempotency: IdempotencyKey) -> Job | None:
    session.execute(_LOCK_KEY, {"key": idempotency.key})
    row = session.get(IdempotencyKeyRow, idempotency.key)
    if row is None:
        return None
    if row.created_at < _now(session) - IDEMPOTENCY_TTL:
        session.delete(row)
        session.flush()
        return None
    if row.request_hash != idempotency.request_hash:
        raise IdempotencyMismatch
    return session.get_one(Job, row.job_id)


def _now(session: Session) -> datetime:
    now = session.scalar(select(func.now()))
    return now if now is not None else datetime.now(UTC)


def _store_problem(session: Session, new: NewJob) -> None:
    values = {
        "hash": new.problem_hash,
        "name": new.problem_name,
        "source": storable_text(new.problem_source),
        "spec": dict(new.problem_spec) if new.problem_spec is not None else None,
    }
    session.execute(_STORE_PROBLEM, values)


def admitted_data(admission: Admission, *, reused: bool) -> dict[str, Any]:
    """What the event `problem.admitted` says; `reused`: it was examined for an earlier job."""
    return {
        "admission_id": admission.id,
        "verdict": admission.verdict,
        "warnings": admission.report.get("warnings") or [],
        "reused": reused,
    }


def _insert_job(session: Session, new: NewJob, admission: Admission | None) -> Job:
    job = Job(
        id=new_id("job"),
        problem_hash=new.problem_hash,
        problem_name=new.problem_name,
        hardware=new.hardware,
        language=new.language,
        budget_candidates=new.budget_candidates,
        budget_usd=new.budget_usd,
        budget_wall_s=new.budget_wall_s,
        budget_gpu_s=new.budget_gpu_s,
        budget_calls=new.budget_calls,
        budget_tokens=new.budget_tokens,
        target_speedup=new.target_speedup,
        stagnation=new.stagnation,
        models=list(new.models),
        diagnosis_model=new.diagnosis_model,
        labels=dict(new.labels),
        priority=new.priority,
        seed=new.seed,
        judge_seed=new_judge_seed(),
        own_kernel_share=new.own_kernel_share,
        search_policy=new.search_policy,
        admit=new.admit,
        certify=new.certify,
        admission_id=None if admission is None else admission.id,
        parent_id=new.parent_id,
        key_id=new.key_id,
        traceparent=tracing.traceparent(),
    )
    session.add(job)
    session.flush()
    tracing.note({"kernelwright.job.id": job.id})
    return job


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
