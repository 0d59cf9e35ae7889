"""/v1/requests: a search in plain words, proposed, looked at and confirmed."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from api import examples, wishes
from api.deps import ActorDep, KeyDep, ServicesDep, StoreDep, known_parameters
from api.errors import (
    BodyTooLarge,
    BrokenJson,
    BudgetUsed,
    Invalid,
    NotJson,
    NotProposed,
    QuotaUsed,
    Refused,
    UnknownRequest,
)
from api.job_schemas import DryRun, Job
from api.openapi import answers, example
from api.request_schemas import PlainRequest, RequestBody
from api.store import Store
from api.waiting import LONGEST_WAIT_S
from db.vocabulary import RequestState

POLL_S = 0.5
"""A model writes for many seconds, and few wait at once: a look at one row twice a second is nothing."""

RETRY_AFTER_S = 3

router = APIRouter(prefix="/v1/requests", tags=["requests"], dependencies=[Depends(known_parameters)])

Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="hold the answer until nothing is being written")]

_MADE = {
    200: example("A job is proposed", examples.REQUEST),
    202: example("A model is writing", examples.REQUEST | {"state": "writing"}),
}
_SHOWN = {200: example("The request", examples.REQUEST)}
_CONFIRMED = {
    202: example("The job is stored and will run", examples.JOB),
    200: example("What it would be (`dry_run`); or it was confirmed before: the same job", examples.DRY_RUN),
}


@router.post(
    "",
    status_code=200,
    summary="Ask for a kernel in plain words",
    responses=answers(_MADE, BrokenJson, BodyTooLarge, NotJson, Invalid, BudgetUsed),
)
async def make_request(
    body: RequestBody, response: Response, services: ServicesDep, store: StoreDep, key_id: KeyDep
) -> PlainRequest:
    """Answers with a proposed problem and a whole job; nothing is searched before it is confirmed.

    The nearest bundled problem is proposed at once. A model, if one is named in `writer`, writes the reference instead;
    look again with `?wait=30` then.
    """
    made = await store.write(wishes.create, body, services.settings.request_model, key_id)
    response.headers["Location"] = made.links["self"]
    if _waits(made):
        response.status_code = 202
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return made


@router.get("/{request_id}", summary="Look at a request", responses=answers(_SHOWN, UnknownRequest))
async def show_request(request_id: str, store: StoreDep, wait: Wait = 0) -> PlainRequest:
    """With `wait`, the answer comes when the model has written, or when the time is over."""
    return await _settled(store, request_id, wait)


@router.post(
    "/{request_id}/confirm",
    status_code=202,
    summary="Submit the job that a request proposes",
    responses=answers(_CONFIRMED, UnknownRequest, NotProposed, Refused, BudgetUsed, QuotaUsed),
)
async def confirm_request(
    request_id: str, response: Response, store: StoreDep, actor: ActorDep, dry_run: bool = False
) -> Any:
    """May be repeated: a request becomes one job. To change something first, POST its `proposal.job` to /v1/jobs."""
    if dry_run:
        response.status_code = 200
        preview: DryRun = await store.read(wishes.preview, request_id)
        return preview
    job: Job
    job, again = await store.write(wishes.confirm, request_id, actor)
    response.status_code = 200 if again else 202
    response.headers["Location"] = job.links["self"]
    return job


def _waits(request: PlainRequest) -> bool:
    return request.state in (RequestState.QUEUED, RequestState.WRITING)


async def _settled(store: Store, request_id: str, wait_s: float) -> PlainRequest:
    now = asyncio.get_running_loop().time
    deadline = now() + wait_s
    while True:
        request = await store.read(wishes.load, request_id)
        if not _waits(request) or now() >= deadline:
            return request
        await asyncio.sleep(min(POLL_S, max(deadline - now(), 0.0)))
