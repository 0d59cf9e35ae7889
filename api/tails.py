"""The newest events of the jobs that are being followed, read once and written out once for all who follow.

When 500 people watch one job, each of its events would otherwise be read 500 times and written as JSON 500 times. A
tail is read when something is new and never filled by a notification, so followers see exactly the rows that are
committed, in their order.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fastapi.sse import format_sse_event
from sqlalchemy.orm import Session

from api.errors import UnknownJob
from api.event_schemas import event
from api.store import Store
from db import events, jobs
from db.models import Event as EventRow
from db.vocabulary import JobState

BATCH: Final = 200
KEPT: Final = 1_000
"""Events of a tail; who is further behind reads the rows."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An event as it goes into a stream."""

    seq: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Events after a place, oldest first. `more`: there may be others already; `ended`: there will be none."""

    frames: Sequence[Frame]
    more: bool = False
    ended: bool = False


class Tails:
    """The tails of all jobs that somebody follows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tails: dict[str, Tail] = {}

    @contextmanager
    def follow(self, job_id: str) -> Iterator[Tail]:
        """The tail of this job, kept for as long as anybody is in such a block."""
        tail = self._tails.setdefault(job_id, Tail(self._store, job_id))
        tail.followers += 1
        try:
            yield tail
        finally:
            tail.followers -= 1
            if not tail.followers:
                del self._tails[job_id]

    def covers(self, job_id: str, seq: int) -> bool:
        """Whether what follows this event is at hand, of a job that somebody follows and that had not ended."""
        tail = self._tails.get(job_id)
        return tail is not None and tail.covers(seq)


class Tail:
    """Of one job. It lives on one event loop."""

    def __init__(self, store: Store, job_id: str) -> None:
        self.followers = 0
        self._store = store
        self._job_id = job_id
        self._frames: deque[Frame] = deque(maxlen=KEPT)
        self._begins: int | None = None
        """Every event after this one is in `_frames`, as of `_mark`. None until somebody has caught up."""
        self._mark = -1
        self._ended = False
        self._reading = asyncio.Lock()

    def covers(self, seq: int) -> bool:
        """Whether every event after `seq` that was read is here, and the job had not ended then."""
        return self._begins is not None and seq >= self._begins and not self._ended

    async def after(self, seq: int, mark: int) -> Batch:
        """What follows the event `seq`, as it was at `mark` or later; a mark counts what was heard of the job.

        Raises:
            UnknownJob: there is no such job.
        """
        if self._begins is None or seq < self._begins:
            return await self._caught_up(seq, mark)
        if mark > self._mark:
            async with self._reading:
                while mark > self._mark and not self._ended:
                    await self._read_on(mark)
        if seq < self._begins:
            return Batch((), more=True)  # the tail has moved on while this one waited
        frames = list(self._frames)
        return Batch(frames[bisect_right(frames, seq, key=lambda frame: frame.seq) :], ended=self._ended)

    async def _caught_up(self, seq: int, mark: int) -> Batch:
        batch = await self._store.read(read_batch, self._job_id, seq)
        if self._begins is None and not batch.more:
            self._begins, self._mark, self._ended = seq, mark, batch.ended
            self._frames.extend(batch.frames)
        return batch

    async def _read_on(self, mark: int) -> None:
        newest = self._frames[-1].seq if self._frames else self._begins
        batch = await self._store.read(read_batch, self._job_id, newest or 0)
        for frame in batch.frames:
            if len(self._frames) == KEPT:
                self._begins = self._frames[0].seq
            self._frames.append(frame)
        self._ended = batch.ended
        if not batch.more:
            self._mark = mark


def read_batch(session: Session, job_id: str, after: int) -> Batch:
    """The next events from the rows. Raises UnknownJob.

    The state is read first: what ends a job is its last event, so a job that has ended has all its events committed.
    """
    job = jobs.glance(session, job_id)
    if job is None:
        raise UnknownJob
    frames = [_frame(row) for row in events.page(session, job_id, after, BATCH)]
    more = len(frames) == BATCH
    return Batch(frames, more, ended=not more and JobState(job.state).terminal)


def _frame(row: EventRow) -> Frame:
    shown = event(row)
    return Frame(row.seq, format_sse_event(data_str=shown.model_dump_json(), event=shown.type, id=str(row.seq)))
