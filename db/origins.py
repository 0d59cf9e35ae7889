"""What a unit of work must know of its job to be part of the job's trace. Asked for only where traces are made."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Job, Work


class Origin(NamedTuple):
    """Where a claimed unit of work comes from."""

    traceparent: str | None
    """Of the request that submitted its job; None: nobody traced that."""
    returned: int
    """How often it was given back without having counted as an attempt."""
    queued_s: float | None
    """How long it was due before it was claimed, by the database's clock."""


def origin_of(session: Session, work_id: str) -> Origin:
    """The origin of this work, which exists."""
    queued_s = func.extract("epoch", Work.claimed_at - Work.not_before)
    query = select(Job.traceparent, Work.returned, queued_s).join(Job, Job.id == Work.job_id).where(Work.id == work_id)
    traceparent, returned, waited_s = session.execute(query).one()
    return Origin(traceparent, returned, None if waited_s is None else float(waited_s))
