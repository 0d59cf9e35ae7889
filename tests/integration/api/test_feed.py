"""What wakes waiters: notifications, the poll when there are none, and the end of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from api.doorbell import Doorbell
from api.feed import Feed, Watch
from api.store import Store
from cli.client import Job
from db.session import make_async_engine, make_async_sessions
from tests.integration.api.history import History

NOWHERE = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
NEVER_S = 3600.0
LONG_S = 30.0


@asynccontextmanager
async def feeding(database_url: str, listen_url: str, poll_s: float) -> AsyncIterator[Feed]:
    """A running feed that listens at one address and polls at another."""
    engine, listened = make_async_engine(database_url, "tests"), make_async_engine(listen_url, "tests")
    doorbell = Doorbell(lambda _bells: None)
    feed = Feed(listened, Store(make_async_sessions(engine), doorbell), poll_s=poll_s, sweep_s=poll_s)
    running = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        doorbell.close()
        await engine.dispose()
        await listened.dispose()


async def listening(feed: Feed) -> None:
    async with asyncio.timeout(LONG_S):
        while not feed.listening:  # noqa: ASYNC110 - nothing but this test waits for it
            await asyncio.sleep(0.01)


async def quiet(watch: Watch) -> int:
    """A mark after which nothing has happened yet: what the feed learns first about a job counts as a change."""
    while await watch.beyond(watch.mark(), 0.5):
        pass
    return watch.mark()


def test_a_notification_wakes_the_waiters_of_its_job_and_no_others(
    database_url: str, history: History, job: Job
) -> None:
    async def main() -> tuple[bool, bool]:
        async with feeding(database_url, database_url, NEVER_S) as feed:
            await listening(feed)
            with feed.watch(job["id"]) as own, feed.watch("job_0") as other:
                mark = own.mark()
                await asyncio.to_thread(history.start, job["id"])
                return await own.beyond(mark, LONG_S), await other.beyond(other.mark(), 0.2)

    assert asyncio.run(main()) == (True, False)


def test_without_notifications_one_poll_wakes_them(database_url: str, history: History, job: Job) -> None:
    async def main() -> tuple[bool, bool]:
        async with feeding(database_url, NOWHERE, 0.02) as feed:
            with feed.watch(job["id"]) as watch, feed.watch("job_0") as other:
                mark = await quiet(watch)
                await asyncio.to_thread(history.start, job["id"])
                assert not feed.listening
                return await watch.beyond(mark, LONG_S), await other.beyond(other.mark(), 0.2)

    assert asyncio.run(main()) == (True, False)


def test_a_poll_that_fails_is_tried_again(history: History, database_url: str, job: Job) -> None:
    async def main() -> bool:
        async with feeding(NOWHERE, database_url, 0.02) as feed:
            await listening(feed)
            with feed.watch(job["id"]) as watch:
                mark = await quiet(watch)
                await asyncio.to_thread(history.start, job["id"])
                return await watch.beyond(mark, LONG_S)

    assert asyncio.run(main())


@pytest.mark.parametrize("released", [True, False])
def test_the_end_of_the_process_lets_everybody_go(database_url: str, released: bool) -> None:
    async def main() -> None:
        async with feeding(database_url, NOWHERE, NEVER_S) as feed:
            with feed.watch("job_0") as watch:
                waiting = asyncio.create_task(watch.beyond(watch.mark(), NEVER_S))
                await asyncio.sleep(0)
                if released:
                    feed.release()
                else:
                    await feed.stop()
                async with asyncio.timeout(LONG_S):
                    assert await waiting
                assert watch.over

    asyncio.run(main())


def test_nothing_is_remembered_of_a_job_that_nobody_watches(database_url: str) -> None:
    async def main() -> None:
        async with feeding(database_url, NOWHERE, NEVER_S) as feed:
            with feed.watch("job_0"), feed.watch("job_0"):
                pass
            assert feed.watched == frozenset()

    asyncio.run(main())
