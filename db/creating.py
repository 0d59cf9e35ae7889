"""How a job comes to be: once per idempotency key, with its problem, its first events and its first work.

Lock order: the API key (if it has caps), the idempotency key, the problem. A new job's own lock is not taken: nobody
else knows of it before the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Row, Text, bindparam, exists, literal, literal_column, select, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session, aliased

from db import events, ledger, outbox, tracing
from db.admissions import CURRENT, ProblemRefused, raise_if_refused
from db.audit import Actor
from db.budgets import LOCK_LIMITED
from db.ids import new_id
from db.judging import new_judge_seed
from db.models import Admission, Job, Problem
from db.statements import load_statements
from db.storable import storable_json, storable_text
from db.vocabulary import QUEUE_CONTROL, AuditAction, EventType, SearchPolicy, WorkKind, target_queue
from db.webhook_models import Webhook

__all__ = [
    "CreatedJob",
    "IdempotencyKey",
    "IdempotencyMismatch",
    "NewJob",
    "ProblemRefused",
    "admitted_data",
    "create_job",
    "same_again",
]

IDEMPOTENCY_TTL: Final = timedelta(hours=24)

SQL: Final = load_statements(Path(__file__).with_name("creating.sql"))
_GIVEN: Final = ("problem", "job", "events", "work", "audit")
_CREATE: Final = (
    select(Job, literal_column("told_seq"))
    .from_statement(
        SQL["create"].bindparams(*(bindparam(name, type_=JSONB) for name in _GIVEN), channel=events.CHANNEL)
    )
    .execution_options(populate_existing=True)
)


_KNOWN: Final = SQL["known"].columns(request_hash=Text, job_id=Text).cte("known")
_FOUND: Final = aliased(Admission, CURRENT.columns(*Admission.__table__.columns).cte("found"), name="admission")
_ONE_ROW: Final = select(literal(1)).subquery("one_row")
_BEFORE: Final = (
    select(
        exists(LOCK_LIMITED.cte("limited")).label("limited"),
        exists(select(Webhook.id).where(Webhook.enabled)).label("webhooks"),
        _KNOWN.c.request_hash,
        _KNOWN.c.job_id,
        _FOUND,
    )
    .select_from(_ONE_ROW.outerjoin(_KNOWN, true()).outerjoin(_FOUND, true()))
    .execution_options(populate_existing=True)
)
"""All that has to be known before, in one journey: whether the API key has caps or quotas, which locks it; whether
anybody wants to be told; what the idempotency key stands for; what the judge found. Always one row."""


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


def create_job(
    session: Session,
    new: NewJob,
    idempotency: IdempotencyKey | None = None,
    allow: Callable[[], None] | None = None,
    actor: Actor | None = None,
) -> CreatedJob:
    """Store the job, its events, the examination of its problem and its first advance; the doorbells are left in the
    session.

    Of concurrent requests with one key the first creates and the others are told `replayed`. `allow` is asked when the
    API key has caps or quotas, which locks it: it may refuse, by raising, what is not a replay. `actor` did it: the
    audit log says so.
    Raises IdempotencyMismatch when the key was used for another request within 24 hours, and ProblemRefused when the
    judge has refused the problem on this hardware.
    """
    key = None if idempotency is None else idempotency.key
    about = {"problem": new.problem_hash, "hardware": new.hardware, "key_id": new.key_id}
    before = session.execute(_BEFORE, {**about, "key": key, "ttl_s": IDEMPOTENCY_TTL.total_seconds()}).one()
    # The rows were read before the lock was waited for: the request that had it may have used the same key.
    seen = _known(session, idempotency) if before.limited else before
    if (earlier := _replay(session, idempotency, seen)) is not None:
        return CreatedJob(earlier, replayed=True)
    if before.limited and allow is not None:
        allow()
    known: Admission | None = before.admission
    raise_if_refused(known)
    created = _create(session, new, known, idempotency, actor)
    if created is None:  # another request with this key was faster, and has committed
        earlier = _replay(session, idempotency, _known(session, idempotency))
        if earlier is None:
            raise RuntimeError("an idempotency key is taken, and nobody has it")
        return CreatedJob(earlier, replayed=True)
    job, told_seq = created
    if before.webhooks:
        outbox.tell(session, job.id, told_seq, EventType.JOB_CREATED)
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


def admitted_data(admission: Admission, *, reused: bool) -> dict[str, Any]:
    """What the event `problem.admitted` says; `reused`: it was examined for an earlier job."""
    return {
        "admission_id": admission.id,
        "verdict": admission.verdict,
        "warnings": admission.report.get("warnings") or [],
        "reused": reused,
    }


def _known(session: Session, idempotency: IdempotencyKey | None) -> Row[Any] | None:
    if idempotency is None:
        return None
    about = {"key": idempotency.key, "ttl_s": IDEMPOTENCY_TTL.total_seconds()}
    return session.execute(SQL["known"], about).one_or_none()


def _replay(session: Session, idempotency: IdempotencyKey | None, seen: Row[Any] | None) -> Job | None:
    """The job that the idempotency key stands for, by what was `seen` of it."""
    if idempotency is None or seen is None or seen.job_id is None:
        return None
    if seen.request_hash != idempotency.request_hash:
        raise IdempotencyMismatch
    return session.get_one(Job, seen.job_id)


def _create(
    session: Session, new: NewJob, known: Admission | None, idempotency: IdempotencyKey | None, actor: Actor | None
) -> tuple[Job, int] | None:
    """The job and the number of its first event, or None when another request has taken the idempotency key."""
    about = {"problem": new.problem_name, "hardware": new.hardware, "language": new.language}
    told = [{"type": EventType.JOB_CREATED.value, "data": about}]
    work = []
    if known is not None:
        told.append({"type": EventType.PROBLEM_ADMITTED.value, "data": admitted_data(known, reused=True)})
    elif new.admit:
        # Before any proposal of this job, so that it is the first that a free worker of this hardware takes.
        work.append(ledger.first_work(WorkKind.ADMIT, target_queue(new.hardware)))
    work.append(ledger.first_work(WorkKind.ADVANCE, QUEUE_CONTROL))
    job_id = new_id("job")
    parameters = {
        "key": None if idempotency is None else idempotency.key,
        "request_hash": None if idempotency is None else idempotency.request_hash,
        "ttl_s": IDEMPOTENCY_TTL.total_seconds(),
        "job_id": job_id,
        "problem": _problem(new),
        "job": storable_json(_columns(new, known) | {"version": 1 + len(told)}),
        "events": storable_json(told),
        "work": work,
        "audit": [] if actor is None else [actor.entry(AuditAction.JOB_SUBMIT, about)],
    }
    row = session.execute(_CREATE, parameters).one_or_none()
    if row is None:
        return None
    job: Job = row[0]
    for unit in work:
        ledger.leave_doorbell(session, ledger.Doorbell(unit["id"], unit["queue"], unit["kind"]))
    tracing.note({"kernelwright.job.id": job.id})
    return job, row.told_seq


def _problem(new: NewJob) -> dict[str, Any]:
    spec = None if new.problem_spec is None else dict(new.problem_spec)
    return {
        "hash": new.problem_hash,
        "name": new.problem_name,
        "source": storable_text(new.problem_source),
        "spec": spec,
    }


def _columns(new: NewJob, admission: Admission | None) -> dict[str, Any]:
    given = {each.name: getattr(new, each.name) for each in fields(NewJob)}
    del given["problem_source"], given["problem_spec"]
    return given | {
        "budget_usd": None if new.budget_usd is None else str(new.budget_usd),
        "judge_seed": new_judge_seed(),
        "admission_id": None if admission is None else admission.id,
        "traceparent": tracing.traceparent(),
    }
