"""/v1/summary and /v1/queues: the whole service in one call, for dashboards that poll."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Response
from sqlalchemy.orm import Session

from api import service_examples as examples
from api.deps import StoreDep, known_parameters
from api.negotiation import etag, matches
from api.openapi import answers, example
from api.summary_schemas import QueueList, ServiceSummary, queue_view, summary_view
from db import summary

CACHE = "max-age=2"
# They move by themselves: a tag over them would never be seen twice.
_MOVING: Any = {"queues": {"__all__": {"oldest_age_s"}}, "workers": {"data": {"__all__": {"heartbeat_at"}}}}

router = APIRouter(prefix="/v1", tags=["summary"], dependencies=[Depends(known_parameters)])

_SHOWN = {200: example("The service now", examples.SUMMARY), 304: {"description": "Unchanged"}}


@router.get("/summary", summary="The whole service at a glance", responses=answers(_SHOWN))
async def show_summary(
    store: StoreDep,
    response: Response,
    if_none_match: Annotated[str | None, Header(examples=['W/"5d41402abc4b2a76"'])] = None,
) -> Any:
    """Jobs, queues, workers with what they do, today's spending and how long work waits; made for polling.

    The tag is weak: ages and heartbeats alone do not change it.
    """
    shown = await store.read(_summary)
    tag = _tag(shown)
    headers = {"ETag": f"W/{tag}", "Cache-Control": CACHE}
    if matches(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return shown


@router.get(
    "/queues",
    summary="List the queues",
    responses=answers({200: example("The queues by name", {"data": [examples.QUEUE]})}),
)
async def list_queues(store: StoreDep) -> QueueList:
    """Each with its depth, the age of its oldest work, its workers, and how long work waited there lately."""
    return await store.read(_queues)


def _tag(shown: ServiceSummary) -> str:
    return etag(hashlib.sha256(shown.model_dump_json(exclude=_MOVING).encode()).hexdigest()[:16])


def _summary(session: Session) -> ServiceSummary:
    return summary_view(summary.summary(session))


def _queues(session: Session) -> QueueList:
    return QueueList(data=[queue_view(each) for each in summary.queues(session)])
