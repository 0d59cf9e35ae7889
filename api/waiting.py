"""Long-polls on a job: read, and if nothing is new, sleep on the feed without holding a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlalchemy.orm import Session

from api.errors import UnknownJob
from api.feed import Feed
from api.job_schemas import Job
from api.job_views import job_view
from api.store import Store
from db import jobs

LONGEST_WAIT_S = 60.0
"""Longer than this, and proxies begin to cut the connection."""


def load_job(session: Session, job_id: str) -> Job:
    """The job resource. Raises UnknownJob."""
    row = jobs.get_job(session, job_id)
    if row is None:
        raise UnknownJob
    return job_view(session, row)


async def job_when_changed(store: Store, feed: Feed, job_id: str, since: int | None, wait_s: float) -> Job:
    """The job once its version is above `since`, or it has ended, or `wait_s` is over; None: above the present version.

    Raises:
        UnknownJob: there is none with this id.
    """
    seen = since

    def changed(job: Job) -> bool:
        nonlocal seen
        seen = job.version if seen is None else seen
        return job.version > seen

    return await _job_when(store, feed, job_id, changed, wait_s)


async def job_when_ended(store: Store, feed: Feed, job_id: str, wait_s: float) -> Job:
    """The job once it has ended, or `wait_s` is over. Raises UnknownJob."""
    return await _job_when(store, feed, job_id, lambda job: False, wait_s)


async def _job_when(store: Store, feed: Feed, job_id: str, enough: Callable[[Job], bool], wait_s: float) -> Job:
    now = asyncio.get_running_loop().time
    deadline = now() + min(wait_s, LONGEST_WAIT_S)
    with feed.watch(job_id) as watch:
        while True:
            mark = watch.mark()
            job = await store.read(load_job, job_id)
            if enough(job) or job.state.terminal or watch.over or now() >= deadline:
                return job
            # Whether it was woken or the time is over, it reads again: an answer is never older than its end.
            await watch.beyond(mark, deadline - now())
