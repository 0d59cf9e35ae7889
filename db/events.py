"""The event log: every state change of a job, in the transaction that made the change. SSE, webhooks and pages read it.

Writers of one job take its advisory lock first, so within a job the order of `seq` is the order of the commits, and a
reader that pages by `seq` misses nothing. Lock order everywhere: the job's advisory lock, then rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from db import outbox
from db.models import Event
from db.storable import storable_json
from db.vocabulary import EventType

CHANNEL: Final = "kernelwright_events"
"""LISTEN on this channel to hear the id of each job that changed."""

_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:job_id, 0))")

# Bumping the version here, and nowhere else, makes it impossible to change a job visibly without a new ETag. Equal
# notifications of one transaction are folded into one by Postgres.
_APPEND = text(
    """
    WITH bumped AS (
        UPDATE jobs SET version = version + 1 WHERE id = :job_id RETURNING id
    ), written AS (
        INSERT INTO events (job_id, type, data) SELECT id, :type, :data FROM bumped RETURNING seq, job_id
    )
    SELECT seq, pg_notify(:channel, job_id) FROM written
    """
).bindparams(bindparam("data", type_=JSONB), channel=CHANNEL)


def lock_job(session: Session, job_id: str) -> None:
    """Take the job's advisory lock until the transaction ends. Taking it twice in one transaction is free."""
    session.execute(_LOCK, {"job_id": job_id})


def append(session: Session, job_id: str, type: EventType, data: Mapping[str, Any] | None = None) -> int:
    """Write an event and what webhooks are told of it, bump the job's version and notify; returns the event's `seq`.

    Takes the job's lock.
    """
    lock_job(session, job_id)
    session.flush()
    parameters = {"job_id": job_id, "type": type.value, "data": storable_json(dict(data or {}))}
    seq = int(session.execute(_APPEND, parameters).scalar_one())
    outbox.tell(session, job_id, seq, type)
    return seq


def page(session: Session, job_id: str, after: int = 0, limit: int = 100) -> Sequence[Event]:
    """Up to `limit` events of a job with `seq` greater than `after`, oldest first."""
    query = select(Event).where(Event.job_id == job_id, Event.seq > after).order_by(Event.seq).limit(limit)
    return session.scalars(query).all()
