"""Events on the wire."""

from __future__ import annotations

from typing import Any

from api.schemas import Resource, UtcTime
from db.models import Event as EventRow


class Event(Resource):
    """One thing that happened in a job. `seq` grows within a job, with gaps: other jobs' events lie between."""

    seq: int
    job_id: str
    type: str
    at: UtcTime
    data: dict[str, Any]


class EventPage(Resource):
    """Events, oldest first. `next_after` is the `after` of the next page, also when this one is empty."""

    data: list[Event]
    next_after: int
    has_more: bool


def event(row: EventRow) -> Event:
    """The resource of an event row."""
    return Event(seq=row.seq, job_id=row.job_id, type=row.type, at=row.at, data=row.data)
