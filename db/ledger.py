"""The work ledger: Postgres is the queue of record, Redis only a doorbell.

A worker claims a row (lease and fencing token), renews it, and finishes it by comparing the token in the transaction
that stores the result. A late writer is fenced off. What happens when a lease runs out is in `db.recovery`.

Nothing here commits. A row that was enqueued leaves a doorbell in the session; ring it after the commit:

    with sessions.begin() as session:
        ...
    client.ring_all(ledger.take_doorbells(session))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Row, bindparam
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session
from sqlalchemy.types import Text

from db.ids import new_id
from db.statements import load_statements
from db.vocabulary import QUEUE_ASK, WorkKind, WorkState

LEASE_S: Final = 45.0
"""How long a claim lasts without renewal: four missed beats."""
RENEW_S: Final = 10.0
MAX_RETURNS: Final = 3
"""How often work may come back for a fault of the machine before it is given up."""
MAX_ATTEMPTS: Final = {
    WorkKind.ADVANCE: 10,
    WorkKind.ADMIT: 3,
    WorkKind.PROPOSE: 3,
    WorkKind.EVALUATE: 3,
    WorkKind.CERTIFY: 3,
    WorkKind.LEARN: 3,
}
"""A poisonous candidate kills its worker three times at most; an advance touches nothing poisonous."""
MAX_ASKS: Final = 2**31 - 1
"""How often a question to outside agents is handed out: one that nobody answers in time is open again, and poisons
nobody. As many as the column holds."""
RING_PER_QUEUE: Final = 64

FINALIST_KEPT_S: Final = 3.0
"""For so long a new `certify` is for the worker that evaluated its candidate: its judge has the problem prepared, which
took another's one to three minutes (H100). When that worker is gone, the reaper's bell brings another."""
SQL: Final = load_statements(Path(__file__).with_name("ledger.sql"))
_CLAIM_NEXT: Final = SQL["claim_next"].bindparams(bindparam("queues", type_=ARRAY(Text())))
_CLAIM_NEAR: Final = SQL["claim_near"].bindparams(bindparam("queues", type_=ARRAY(Text())))
_DOORBELLS: Final = "kernelwright.doorbells"


class LedgerError(Exception):
    """Base of the ledger's errors; each one's docstring is its message."""

    def __str__(self) -> str:
        return str(self.__doc__)


class Fenced(LedgerError):
    """This work is no longer held: its lease ran out or its job ended. Roll back; whatever was found is discarded."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A unit of work that this process owns until its lease runs out; `token` proves it."""

    id: str
    kind: WorkKind
    queue: str
    job_id: str
    candidate_id: str | None
    attempt: int
    token: UUID

    @property
    def candidate(self) -> str:
        """The candidate's id. Raises ValueError for an advance, an admit and a learn, which have none."""
        if self.candidate_id is None:
            raise ValueError(f"{self.kind} work has no candidate")
        return self.candidate_id


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a beat learned: whether the lease still holds, and whether the job is to be cancelled."""

    held: bool
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How much waits on a queue; `oldest_age_s` is the age of the oldest row that is ready."""

    queue: str
    ready: int
    delayed: int
    running: int
    oldest_age_s: float


class Doorbell(NamedTuple):
    """What a Celery message says: look at this queue. It is rung after the commit, and may be lost."""

    work_id: str
    queue: str
    kind: str


def enqueue(
    session: Session,
    *,
    kind: WorkKind,
    queue: str,
    job_id: str,
    candidate_id: str | None = None,
    priority: int = 0,
    delay_s: float = 0,
) -> str | None:
    """Add a unit of work and leave its doorbell in the session; None when an advance of the job is queued already.

    Raises IntegrityError when the candidate already has work of this kind.
    """
    parameters = {
        "id": new_id("work"),
        "kind": kind.value,
        "queue": queue,
        "job_id": job_id,
        "candidate_id": candidate_id,
        "priority": priority,
        "max_attempts": MAX_ASKS if queue == QUEUE_ASK else MAX_ATTEMPTS[kind],
        "delay_s": float(delay_s),
    }
    session.flush()
    work_id: str | None = session.execute(SQL["enqueue"], parameters).scalar_one_or_none()
    if work_id is not None and not delay_s:
        leave_doorbell(session, Doorbell(work_id, queue, kind.value))
    return work_id


def first_work(kind: WorkKind, queue: str) -> dict[str, Any]:
    """The columns of a unit of work that is stored in one statement with its job (`db.creating`)."""
    return {"id": new_id("work"), "kind": kind.value, "queue": queue, "max_attempts": MAX_ATTEMPTS[kind]}


def leave_doorbell(session: Session, doorbell: Doorbell) -> None:
    """Remember to ring after the commit. Outside agents hear no bell: they ask."""
    if doorbell.queue == QUEUE_ASK:
        return
    session.info.setdefault(_DOORBELLS, []).append(doorbell)


def take_doorbells(session: Session) -> list[Doorbell]:
    """The doorbells left in the session since the last call. Ring them after the commit; after a rollback drop them."""
    taken: list[Doorbell] = session.info.pop(_DOORBELLS, [])
    return taken


def claim(session: Session, work_id: str, owner: str, *, lease_s: float = LEASE_S) -> Claim | None:
    """Claim one row by id; None when somebody has it, it is done, it is not due, or its job is being cancelled."""
    parameters = {"id": work_id, "owner": owner, "lease_s": lease_s}
    return _claimed(session.execute(SQL["claim"], parameters).one_or_none())


def claim_next(session: Session, queues: Sequence[str], owner: str, *, lease_s: float = LEASE_S) -> Claim | None:
    """Claim a ready row of the queues: highest priority, then the API key that has least of them, then its oldest."""
    parameters = {"queues": list(queues), "owner": owner, "lease_s": lease_s, "kept_s": FINALIST_KEPT_S}
    return _claimed(session.execute(_CLAIM_NEXT, parameters).one_or_none())


def claim_near(
    session: Session, job_id: str, queues: Sequence[str], owner: str, *, lease_s: float = LEASE_S
) -> Claim | None:
    """Claim an `evaluate` of a job that this owner evaluates already; None where there is none or others come first."""
    parameters = {"job_id": job_id, "queues": list(queues), "owner": owner, "lease_s": lease_s}
    return _claimed(session.execute(_CLAIM_NEAR, parameters).one_or_none())


def claim_finalist(session: Session, job_id: str, owner: str, *, lease_s: float = LEASE_S) -> Claim | None:
    """Claim the `certify` of a job whose best candidate this owner evaluated; None where there is none."""
    parameters = {"job_id": job_id, "owner": owner, "lease_s": lease_s}
    return _claimed(session.execute(SQL["claim_finalist"], parameters).one_or_none())


def to_be_certified(session: Session, job_id: str, owner: str) -> bool:
    """Whether a job wants a certificate, its best is what this owner evaluated, and its next step is being decided."""
    return bool(session.execute(SQL["to_be_certified"], {"job_id": job_id, "owner": owner}).scalar_one())


def places(session: Session) -> dict[str, int]:
    """The places of all jobs that have not started, as claims will come to them: 1 is next.

    Jobs that have started, or are being started now, have none.
    """
    return {row.job_id: row.place for row in session.execute(SQL["places"])}


def _claimed(row: Row[Any] | None) -> Claim | None:
    if row is None:
        return None
    return Claim(row.id, WorkKind(row.kind), row.queue, row.job_id, row.candidate_id, row.attempt, row.lease_token)


def renew(session: Session, claim: Claim, *, lease_s: float = LEASE_S) -> Renewal:
    """Extend the lease and hear of a cancel."""
    parameters = {"id": claim.id, "token": claim.token, "lease_s": lease_s}
    cancel_requested = session.execute(SQL["renew"], parameters).scalar_one_or_none()
    return Renewal(held=cancel_requested is not None, cancel_requested=bool(cancel_requested))


def finish(session: Session, claim: Claim, *, state: WorkState = WorkState.DONE) -> bool:
    """Finish the work if the token still holds. False: fenced; roll back, the results must not be stored."""
    parameters = {"id": claim.id, "token": claim.token, "state": state.value}
    return session.execute(SQL["finish"], parameters).one_or_none() is not None


def settle(session: Session, claim: Claim) -> None:
    """Finish the work or raise Fenced."""
    if not finish(session, claim):
        raise Fenced


def hold(session: Session, claim: Claim) -> None:
    """Lock the claimed row until the transaction ends, or raise Fenced: for changes made in the middle of the work."""
    if session.execute(SQL["held"], {"id": claim.id, "token": claim.token}).one_or_none() is None:
        raise Fenced


def to_ring(session: Session, older_than_s: float = 5, *, per_queue: int = RING_PER_QUEUE) -> list[Doorbell]:
    """The doorbells that seem lost: of rows queued, due and not rung for `older_than_s`. Marks them rung."""
    rows = session.execute(SQL["to_ring"], {"older_than_s": float(older_than_s), "per_queue": per_queue})
    return [Doorbell(row.id, row.queue, row.kind) for row in rows]


def left_to_others(session: Session, queues: Sequence[str], owner: str) -> Doorbell | None:
    """A doorbell for active workers of these queues, if this owner is at rest and there is something to do."""
    row = session.execute(SQL["left_to_others"], {"queues": list(queues), "owner": owner}).one_or_none()
    return None if row is None else Doorbell(row.id, row.queue, row.kind)


def depths(session: Session) -> list[QueueDepth]:
    """How much is queued and running, queue by queue."""
    rows = session.execute(SQL["depths"])
    return [
        QueueDepth(row.queue, int(row.ready), int(row.delayed), int(row.running), float(row.oldest_age_s))
        for row in rows
    ]
