"""Decisions: what each advance saw of its job and what it decided, so that a search can be run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Event
from db.paging import Page, decode_cursor, encode_cursor, number_in
from db.recording_models import Decision
from db.storable import storable_json


def record_decision(session: Session, job_id: str, view: Mapping[str, Any], decision: Mapping[str, Any]) -> None:
    """Store a decision before it becomes rows. The caller holds the job's lock, so the newest event is what it saw."""
    seq = session.scalar(select(func.max(Event.seq)).where(Event.job_id == job_id)) or 0
    session.add(Decision(job_id=job_id, seq=seq, view=storable_json(view), decision=storable_json(decision)))
    session.flush()


def list_decisions(session: Session, job_id: str, *, limit: int, cursor: str | None = None) -> Page[Decision]:
    """A page of a job's decisions, in the order in which they were made. Raises InvalidCursor."""
    query = select(Decision).where(Decision.job_id == job_id).order_by(Decision.id).limit(limit + 1)
    if cursor is not None:
        query = query.where(Decision.id > number_in(decode_cursor(cursor, 1)[0]))
    rows = session.scalars(query).all()
    following = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), following)
