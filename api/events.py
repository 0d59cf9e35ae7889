"""/v1/jobs/{id}/events: what happened in a job, as pages or as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import Field
from sqlalchemy.orm import Session

from api import examples
from api.deps import FeedDep, StoreDep, known_parameters
from api.errors import UnknownJob
from api.event_schemas import Event, EventPage, event
from api.feed import Feed
from api.negotiation import negotiate
from api.openapi import answers, example
from api.store import Store
from db import events, jobs
from db.vocabulary import JobState

JSON = "application/json"
STREAM = "text/event-stream"
KEEPALIVE_S = 15.0
"""Proxies cut connections that are silent for 30 to 60 s."""
BATCH = 200

router = APIRouter(tags=["jobs"], dependencies=[Depends(known_parameters)])

_MOST_SEQ = 2**63 - 1
_SEEN = example("A page; or a stream with `Accept: text/event-stream`", examples.EVENT_PAGE)
_SEEN["content"][STREAM] = {"example": examples.EVENT_STREAM}
_OVER = {"description": "The job has ended and the stream has nothing left: a browser then stops reconnecting"}

LastEventId = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
"""A header is text, whatever it says."""


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Read or follow a job's events",
    response_model=EventPage,
    responses=answers({200: _SEEN, 204: _OVER}, UnknownJob),
)
async def list_events(
    job_id: str,
    store: StoreDep,
    feed: FeedDep,
    after: Annotated[int, Query(ge=0, le=_MOST_SEQ, description="the last seq already seen")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="of a page")] = 100,
    accept: Annotated[str | None, Header()] = None,
    last_event_id: Annotated[LastEventId | None, Header(description="of a stream; goes before `after`")] = None,
) -> Any:
    """A stream begins after `after`, goes on as things happen and ends with the job; `id` is the seq to resume from."""
    if negotiate(accept, JSON, STREAM) == JSON:
        return await store.read(_page, job_id, after, limit)
    after = after if last_event_id is None else int(last_event_id)
    first, ended = await store.read(_batch, job_id, after)
    if ended and not first and last_event_id is not None:
        return Response(status_code=204)
    return EventSourceResponse(_stream(store, feed, job_id, after), headers=_STREAM_HEADERS)


# nginx would hold back a stream until its buffer is full.
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Vary": "Accept"}


async def _stream(store: Store, feed: Feed, job_id: str, after: int) -> AsyncIterator[bytes]:
    with feed.watch(job_id) as watch:
        while True:
            mark = watch.mark()
            batch, ended = await store.read(_batch, job_id, after)
            for each in batch:
                yield format_sse_event(data_str=each.model_dump_json(), event=each.type, id=str(each.seq))
                after = each.seq
            if len(batch) == BATCH:
                continue
            if ended or watch.over:
                return
            if not await watch.beyond(mark, KEEPALIVE_S):
                yield KEEPALIVE_COMMENT


def _page(session: Session, job_id: str, after: int, limit: int) -> EventPage:
    if jobs.get_job(session, job_id) is None:
        raise UnknownJob
    rows = events.page(session, job_id, after, limit + 1)
    data = [event(row) for row in rows[:limit]]
    return EventPage(data=data, next_after=data[-1].seq if data else after, has_more=len(rows) > limit)


def _batch(session: Session, job_id: str, after: int) -> tuple[list[Event], bool]:
    """The next events, and whether they are the last. The state is read first: what ends a job is its last event, so
    that a job that has ended has all its events committed."""
    job = jobs.get_job(session, job_id)
    if job is None:
        raise UnknownJob
    ended = JobState(job.state).terminal
    return [event(row) for row in events.page(session, job_id, after, BATCH)], ended
