"""The first page: all jobs, newest first, with how far each is and the best that it has."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from api import jobs
from api.deps import StoreDep
from api.job_schemas import Job
from api.pages.frame import render, see_other
from api.paging import Cursor
from db.vocabulary import JobState

PAGE_SIZE = 25

router = APIRouter()


@router.get("/")
async def front() -> Response:
    """The jobs are what one comes for."""
    return see_other("/jobs")


@router.get("/jobs")
async def show_jobs(
    request: Request,
    store: StoreDep,
    state: Annotated[JobState | None, Query()] = None,
    cursor: Cursor = None,
) -> Response:
    """One page of jobs; those of one state on request."""
    page = await jobs.list_jobs(request, Response(), store, state=state, limit=PAGE_SIZE, cursor=cursor)
    kept = {"state": state.value} if state is not None else {}
    following = {**kept, "cursor": page.next_cursor} if page.next_cursor is not None else None
    return render(
        request,
        "jobs.html.j2",
        jobs=page.data,
        tried=tried,
        states=list(JobState),
        state=state,
        first="/jobs?" + urlencode(kept) if cursor is not None else None,
        following="/jobs?" + urlencode(following) if following is not None else None,
        here=f"{request.url.path}?{request.url.query}",
        live=any(not job.state.terminal for job in page.data) or cursor is None,
    )


def tried(job: Job) -> int:
    """The candidates of a job that nothing more happens to."""
    counts = job.progress.candidates
    return counts["evaluated"] + counts["rejected"]
