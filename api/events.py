"""/v1/jobs/{id}/events: what happened in a job, as pages or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse
from pydantic import Field
from sqlalchemy.orm import Session

from api import examples
from api.deps import KeyDep, Services, ServicesDep, known_parameters
from api.errors import TooManyStreams, UnknownJob
from api.event_schemas import EventPage, event
from api.negotiation import negotiate
from api.openapi import answers, example
from api.tails import read_batch
from db import events, jobs

JSON = "application/json"
STREAM = "text/event-stream"
KEEPALIVE_S = 15.0
"""Proxies cut connections that are silent for 30 to 60 s."""
PACE_S = 0.2
"""A stream is written to at most five times a second: 500 streams of a job with 50 events a second would be 25,000
writes, more than a process can do. People do not see the difference."""

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
    responses=answers({200: _SEEN, 204: _OVER}, UnknownJob, TooManyStreams),
)
async def list_events(
    job_id: str,
    services: ServicesDep,
    key_id: KeyDep,
    after: Annotated[int, Query(ge=0, le=_MOST_SEQ, description="the last seq already seen")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="of a page")] = 100,
    accept: Annotated[str | None, Header()] = None,
    last_event_id: Annotated[LastEventId | None, Header(description="of a stream; goes before `after`")] = None,
) -> Any:
    """A stream begins after `after`, goes on as things happen and ends with the job; `id` is the seq to resume from."""
    if negotiate(accept, JSON, STREAM) == JSON:
        return await services.store.read(_page, job_id, after, limit)
    after = after if last_event_id is None else int(last_event_id)
    # Of 500 who watch a job 250 lost their connection at once and came back in a moment: nothing is read for them.
    if not services.tails.covers(job_id, after):
        first = await services.store.read(read_batch, job_id, after)
        if first.ended and not first.frames and last_event_id is not None:
            return Response(status_code=204)
    services.streams.check(key_id)
    return EventSourceResponse(_stream(services, job_id, after, key_id), headers=_STREAM_HEADERS)


# nginx would hold back a stream until its buffer is full.
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Vary": "Accept"}


async def _stream(services: Services, job_id: str, after: int, key_id: str | None) -> AsyncIterator[bytes]:
    """What is new is sent at once, and what follows it within `PACE_S` together."""
    counted = services.streams.counted(key_id)
    with counted, services.feed.watch(job_id) as watch, services.tails.follow(job_id) as tail:
        while True:
            mark = watch.mark()
            batch = await tail.after(after, mark)
            if batch.frames:
                yield b"".join(frame.text for frame in batch.frames)
                after = batch.frames[-1].seq
            if batch.more:
                continue
            if batch.ended or watch.over:
                return
            if batch.frames:
                await asyncio.sleep(PACE_S)
            if not await watch.beyond(mark, KEEPALIVE_S):
                yield KEEPALIVE_COMMENT


def _page(session: Session, job_id: str, after: int, limit: int) -> EventPage:
    if jobs.get_job(session, job_id) is None:
        raise UnknownJob
    rows = events.page(session, job_id, after, limit + 1)
    data = [event(row) for row in rows[:limit]]
    return EventPage(data=data, next_after=data[-1].seq if data else after, has_more=len(rows) > limit)
