"""All who follow a job are given the same events, however far behind they are, and the rows are read once for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api import tails
from api.errors import UnknownJob
from api.store import Store
from api.tails import Tails
from cli.client import Job
from db import events
from db.vocabulary import EventType
from tests.integration.api.history import History


class Reads:
    """A store that counts what is read of it."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        self.count = 0

    async def read(self, query: Callable[..., Any], *arguments: Any) -> Any:
        self.count += 1
        with self._sessions() as session:
            return query(session, *arguments)


def more(sessions: sessionmaker[Session], job: Job, count: int) -> list[int]:
    with sessions.begin() as session:
        return [
            events.append(session, job["id"], EventType.CANDIDATE_EVALUATED, {"number": each}) for each in range(count)
        ]


def test_500_followers_of_a_job_cost_one_reading(sessions: sessionmaker[Session], job: Job) -> None:
    reads = Reads(sessions)
    kept = Tails(cast(Store, reads))

    async def follow() -> None:
        with kept.follow(job["id"]) as tail:
            first = await tail.after(0, mark=0)
            place = first.frames[-1].seq
            made = more(sessions, job, 3)
            reads.count = 0
            batches = await asyncio.gather(*(tail.after(place, mark=1) for _ in range(500)))
            assert all([frame.seq for frame in batch.frames] == made for batch in batches)
            assert reads.count == 1

    asyncio.run(follow())


def test_who_is_behind_the_tail_reads_the_rows_until_it_is_not(
    sessions: sessionmaker[Session], job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "KEPT", 4)
    monkeypatch.setattr(tails, "BATCH", 3)
    kept = Tails(cast(Store, Reads(sessions)))

    async def follow() -> None:
        with kept.follow(job["id"]) as tail:
            place = (await tail.after(0, mark=0)).frames[-1].seq
            made = more(sessions, job, 10)
            newest = await tail.after(made[-2], mark=1)
            assert [frame.seq for frame in newest.frames] == made[-1:]
            seen: list[int] = []
            for _ in range(20):
                batch = await tail.after(place, mark=1)
                seen += [frame.seq for frame in batch.frames]
                place = seen[-1] if seen else place
                if not batch.more:
                    break
            assert seen == made

    asyncio.run(follow())


def test_the_last_events_of_a_job_end_its_tail(sessions: sessionmaker[Session], job: Job, history: History) -> None:
    kept = Tails(cast(Store, Reads(sessions)))

    async def follow() -> None:
        with kept.follow(job["id"]) as tail:
            begun = await tail.after(0, mark=0)
            history.finish(job["id"])
            ended = await tail.after(begun.frames[-1].seq, mark=1)
            assert (begun.ended, ended.ended) == (False, True)
            assert (await tail.after(ended.frames[-1].seq, mark=1)).ended

    asyncio.run(follow())


def test_a_tail_covers_what_it_has_read_until_the_job_ends_or_nobody_follows(
    sessions: sessionmaker[Session], job: Job, history: History
) -> None:
    kept = Tails(cast(Store, Reads(sessions)))

    async def follow() -> None:
        assert not kept.covers(job["id"], 1)
        with kept.follow(job["id"]) as tail:
            assert not kept.covers(job["id"], 1)  # nothing was read yet
            made = more(sessions, job, 2)
            await tail.after(made[0], mark=0)
            assert kept.covers(job["id"], made[0])
            assert kept.covers(job["id"], made[1])
            assert not kept.covers(job["id"], made[0] - 1)
            history.finish(job["id"])
            await tail.after(made[1], mark=1)
            assert not kept.covers(job["id"], made[1])
        assert not kept.covers(job["id"], made[1])

    asyncio.run(follow())


def test_a_job_that_is_not_there_is_said(sessions: sessionmaker[Session]) -> None:
    async def follow() -> None:
        with Tails(cast(Store, Reads(sessions))).follow("job_none") as tail, pytest.raises(UnknownJob):
            await tail.after(0, mark=0)

    asyncio.run(follow())
