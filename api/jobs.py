"""/v1/jobs: submit, list, look at, wait for and cancel jobs."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session
from starlette.routing import BaseRoute

from api import examples, submission
from api.deps import ActorDep, FeedDep, GlancesDep, StoreDep, known_parameters
from api.errors import (
    BodyTooLarge,
    BrokenJson,
    BudgetUsed,
    Invalid,
    KeyReused,
    NotJson,
    QuotaUsed,
    Refused,
    UnknownJob,
    invalid,
)
from api.glances import REMEMBERED_S, Glance, Glances
from api.job_schemas import CancelBody, Cancelled, DryRun, Job, JobBody, JobPage
from api.job_views import job_view, job_views
from api.negotiation import etag, matches, preferred_wait_s
from api.openapi import answers, example
from api.paging import Cursor, Limit, link_next
from api.places import held_s, queue_places
from api.schemas import Text, TimeIn
from api.store import Store
from api.waiting import LONGEST_WAIT_S, job_when_changed, job_when_ended, load_job
from db import audit, jobs
from db.audit import Actor
from db.paging import InvalidCursor
from db.vocabulary import AuditAction, JobState, Language

# The doorbell makes a job start within milliseconds, but searches take minutes: polling faster shows nothing new.
RETRY_AFTER_S = 2

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[Depends(known_parameters)])

IdempotencyKey = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,255}$")]
Short = Annotated[Text, Field(max_length=256)]
LabelFilter = Annotated[str, Field(pattern=r"^[^:\x00]+:[^\x00]*$", max_length=400, examples=["team:ranking"])]
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="hold the answer until something is new: seconds")]

_BODY_ERRORS = (BrokenJson, BodyTooLarge, NotJson, Invalid)
_SUBMITTED = {
    202: example("The job is stored and will run", examples.JOB),
    200: example("Validated, nothing stored (`dry_run`); or the job ended in time (`Prefer: wait`)", examples.DRY_RUN),
}
_SHOWN = {200: example("The job", examples.JOB), 304: {"description": "Unchanged"}}
_RERUN = {
    202: example("The new job is stored and will run", examples.JOB_AGAIN),
    200: example("The new job ended in time (`Prefer: wait`)", examples.JOB_AGAIN | {"state": "succeeded"}),
}
_CANCELLED = {
    202: example("It will end soon", examples.CANCELLED),
    200: example("It had ended, or was being cancelled", examples.CANCELLED | {"changed": False}),
}


@router.post(
    "",
    status_code=202,
    summary="Submit a job",
    responses=answers(_SUBMITTED, *_BODY_ERRORS, KeyReused, Refused, BudgetUsed, QuotaUsed),
)
async def submit_job(
    body: JobBody,
    response: Response,
    store: StoreDep,
    feed: FeedDep,
    actor: ActorDep,
    dry_run: bool = False,
    idempotency_key: Annotated[IdempotencyKey | None, Header(description="one job per key for 24 h")] = None,
    prefer: Annotated[str | None, Header(description="wait=N: answer when the job ends, at most 60 s")] = None,
) -> Job | DryRun:
    """Store a job and ring for a worker. The same Idempotency-Key with the same body answers the first job again."""
    if body.problem.source is None:
        problem = submission.resolve(body.problem, body.target.hardware)
    else:  # parsing takes milliseconds
        problem = await asyncio.to_thread(submission.resolve, body.problem, body.target.hardware)
    if dry_run:
        response.status_code = 200
        return await store.read(submission.dry_run, body, problem)
    job, replayed = await store.write(submission.submit, body, problem, idempotency_key, actor)
    return await _submitted(response, store, feed, job, replayed, preferred_wait_s(prefer))


@router.get("", summary="List jobs, newest first", responses=answers({200: example("A page", examples.JOB_PAGE)}))
async def list_jobs(
    request: Request,
    response: Response,
    store: StoreDep,
    state: JobState | None = None,
    problem: Short | None = None,
    hardware: Short | None = None,
    language: Language | None = None,
    label: Annotated[list[LabelFilter] | None, Query(description="key:value; may be repeated, all must match")] = None,
    created_after: Annotated[TimeIn | None, Query(examples=["2026-11-21T00:00:00Z"])] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage:
    """Follow `next_cursor` (or the Link header): each job comes once, however many are submitted meanwhile."""
    labels = dict(each.split(":", 1) for each in label or ())
    where = jobs.JobFilter(state, problem, hardware, language, labels, created_after)
    page = await store.read(_page, where, limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


@router.get(
    "/{job_id}",
    summary="Look at a job, or wait until it changes",
    responses=answers(_SHOWN, UnknownJob),
)
async def show_job(
    job_id: str,
    store: StoreDep,
    feed: FeedDep,
    glances: GlancesDep,
    response: Response,
    wait: Wait = 0,
    since_version: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="the version already seen")] = None,
    if_none_match: Annotated[str | None, Header(examples=['"23"'])] = None,
) -> Any:
    """With `wait`, the answer comes when the version passes `since_version`, the job ends, or the time is over."""
    if if_none_match is not None and not wait and (same := await _unchanged(store, glances, job_id, if_none_match)):
        return Response(status_code=304, headers=same)
    since = _version_in(if_none_match) if since_version is None else since_version
    job = await job_when_changed(store, feed, job_id, since, wait)
    headers = _headers(job)
    if matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return job


@router.post(
    "/{job_id}/cancel",
    status_code=202,
    summary="Cancel a job",
    responses=answers(_CANCELLED, UnknownJob, *_BODY_ERRORS),
)
async def cancel_job(
    job_id: str, response: Response, store: StoreDep, actor: ActorDep, body: CancelBody | None = None
) -> Cancelled:
    """May be repeated: a job is cancelled once. Running candidates are stopped within seconds."""
    cancelled = await store.write(_cancel, job_id, body.reason if body else None, actor)
    response.status_code = 202 if cancelled.changed else 200
    response.headers.update(_headers(cancelled.job))
    return cancelled


@router.post(
    "/{job_id}/rerun",
    status_code=202,
    summary="Run a job again",
    responses=answers(_RERUN, UnknownJob, KeyReused, Refused, BudgetUsed, QuotaUsed),
)
async def rerun_job(
    job_id: str,
    response: Response,
    store: StoreDep,
    feed: FeedDep,
    actor: ActorDep,
    idempotency_key: Annotated[IdempotencyKey | None, Header(description="one job per key for 24 h")] = None,
    prefer: Annotated[str | None, Header(description="wait=N: answer when the job ends, at most 60 s")] = None,
) -> Job:
    """A new job with the same problem, target, budget, policy and labels, and this one as its `parent_id`.

    What was learned meanwhile is used, and the judge draws other inputs. To repeat a search exactly there is `replay`.
    """
    job, replayed = await store.write(submission.rerun, job_id, idempotency_key, actor)
    return await _submitted(response, store, feed, job, replayed, preferred_wait_s(prefer))


def polled() -> BaseRoute:
    """The operation that dashboards poll."""
    return next(route for route in router.routes if getattr(route, "endpoint", None) is show_job)


def job_tag(version: int, place: int | None) -> str:
    """The entity tag. Others move a waiting job's place without touching its version, so the place is part of it."""
    return etag(str(version) if place is None else f"{version}.{place}")


async def _unchanged(store: Store, glances: Glances, job_id: str, if_none_match: str) -> dict[str, str] | None:
    """The headers of a 304 when the client has the newest, else None. Most polls end here."""
    known = glances.of(job_id)
    if known is None:
        mark = glances.reading(job_id)
        found = await store.read(_glance, job_id)
        if found is None:
            return None
        known, good_for_s = found
        glances.remember(job_id, mark, known, good_for_s)
    return known.headers if matches(if_none_match, known.tag) else None


def _glance(session: Session, job_id: str) -> tuple[Glance, float] | None:
    """How the job would be answered for, and how long unless it changes: two columns of one row are read where the
    whole resource takes five queries."""
    found = jobs.glance(session, job_id)
    if found is None:
        return None
    state = JobState(found.state)
    if state is not JobState.QUEUED:
        return _answered(job_tag(found.version, None), state), REMEMBERED_S
    place = queue_places(session, [job_id]).get(job_id)
    return _answered(job_tag(found.version, place), state), held_s(session)


def _answered(tag: str, state: JobState) -> Glance:
    return Glance(tag, _headers_of(tag, state))


async def _submitted(
    response: Response, store: StoreDep, feed: FeedDep, job: Job, replayed: bool, wait_s: float | None
) -> Job:
    if wait_s is not None:
        job = await job_when_ended(store, feed, job.id, wait_s)
        response.headers["Preference-Applied"] = f"wait={min(wait_s, LONGEST_WAIT_S):.0f}"
        response.status_code = 200 if job.state.terminal else 202
    if replayed:
        response.headers["Idempotent-Replayed"] = "true"
    response.headers.update(_headers(job) | {"Location": job.links["self"]})
    return job


def _headers(job: Job) -> dict[str, str]:
    return _headers_of(job_tag(job.version, job.queue.position), job.state)


def _headers_of(tag: str, state: JobState) -> dict[str, str]:
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    return headers if state.terminal else headers | {"Retry-After": str(RETRY_AFTER_S)}


def _version_in(if_none_match: str | None) -> int | None:
    found = re.search(r'"(\d{1,18})[."]', if_none_match or "")
    return int(found[1]) if found else None


def _page(session: Session, where: jobs.JobFilter, limit: int, cursor: str | None) -> JobPage:
    try:
        page = jobs.list_jobs(session, where, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    return JobPage(data=job_views(session, page.items), next_cursor=page.next_cursor, has_more=page.has_more)


def _cancel(session: Session, job_id: str, reason: str | None, actor: Actor) -> Cancelled:
    load_job(session, job_id)
    changed = jobs.cancel_job(session, job_id, reason)
    if changed:
        audit.note(session, actor, AuditAction.JOB_CANCEL, job_id, {"reason": reason} if reason else None)
    return Cancelled(changed=changed, job=job_view(session, jobs.fetch_job(session, job_id)))
