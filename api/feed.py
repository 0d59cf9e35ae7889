"""What wakes the long-polls and the event streams: one LISTEN connection per API process, never one per waiter.

A notification only says "something happened in this job"; the waiter then reads the rows. So a lost notification costs
time, never truth, and time is bounded: while the connection is down (or behind a pooler that swallows NOTIFY) one query
every half second asks for the versions of all watched jobs at once, and every five seconds it does so anyway.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from api.store import Store
from db.events import CHANNEL
from db.keys import CHANNEL as KEYS_CHANNEL
from db.models import Job

POLL_S = 0.5
SWEEP_S = 5.0
RECONNECT_S = 1.0

log = structlog.get_logger("api")


class Feed:
    """Runs for the life of the application. All of it lives on one event loop, so plain attributes are safe."""

    def __init__(
        self,
        engine: AsyncEngine,
        store: Store,
        *,
        keys_changed: Callable[[], None] = lambda: None,
        job_changed: Callable[[str | None], None] = lambda _job_id: None,
        poll_s: float = POLL_S,
        sweep_s: float = SWEEP_S,
    ) -> None:
        """`job_changed` is told of every job in which something happens, and None when nobody knows in which."""
        self._engine = engine
        self._store = store
        self._keys_changed = keys_changed
        self._job_changed = job_changed
        self._poll_s = poll_s
        self._sweep_s = sweep_s
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._watchers: Counter[str] = Counter()
        self._ticks: Counter[str] = Counter()
        self._seen: dict[str, int] = {}
        self._stopped = False
        self._releasing: asyncio.Task[None] | None = None
        self.listening = False

    @property
    def stopped(self) -> bool:
        """True once the process is going down: waiters answer with what they have."""
        return self._stopped

    @property
    def watched(self) -> frozenset[str]:
        """The jobs that somebody waits for now."""
        return frozenset(self._watchers)

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Watch]:
        """Count this job among the watched ones for as long as the block lasts."""
        self._watchers[job_id] += 1
        try:
            yield Watch(self, job_id)
        finally:
            self._watchers[job_id] -= 1
            if not self._watchers[job_id]:
                for record in (self._watchers, self._ticks, self._seen):
                    record.pop(job_id, None)

    async def run(self) -> None:
        """Feed the waiters until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._poll())

    def release(self) -> None:
        """Stop from a callback of the event loop."""
        self._releasing = asyncio.get_running_loop().create_task(self.stop())

    async def stop(self) -> None:
        """Let every waiter go: a stream that never ends would hold up the shutdown."""
        self._stopped = True
        for job_id in list(self._waiting):
            self._wake(job_id)

    def ticks(self, job_id: str) -> int:
        """How often something happened in a watched job."""
        return self._ticks[job_id]

    async def wait_beyond(self, job_id: str, mark: int) -> None:
        """Return when something happened in the job since `mark`, or when the feed stops."""
        if self._stopped or self._ticks[job_id] != mark:
            return
        waiter = asyncio.get_running_loop().create_future()
        waiting = self._waiting[job_id]
        waiting.add(waiter)
        try:
            await waiter
        finally:
            waiting.discard(waiter)
            if not waiting and self._waiting.get(job_id) is waiting:
                del self._waiting[job_id]

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear()
            except psycopg.Error as error:
                log.warning("feed.listen_lost", why=str(error).strip(), poll_s=self._poll_s)
            finally:
                self.listening = False
            await asyncio.sleep(RECONNECT_S)

    async def _hear(self) -> None:
        async with await self._connect() as connection:
            await connection.execute(f"LISTEN {CHANNEL}; LISTEN {KEYS_CHANNEL}".encode())
            self._keys_changed()  # what changed while nobody listened
            self._job_changed(None)
            self.listening = True
            log.info("feed.listening", channel=CHANNEL)
            self._tick(*self.watched)  # what happened while nobody listened
            async for notice in connection.notifies():
                if notice.channel == KEYS_CHANNEL:
                    self._keys_changed()
                else:
                    self._job_changed(notice.payload)
                    self._tick(notice.payload)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        # A dead peer must not look like a quiet one: without these the kernel asks after two hours.
        keepalives = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        own = {"application_name": "kernelwright-api-feed", "connect_timeout": 5}
        return await psycopg.AsyncConnection.connect(*arguments, autocommit=True, **(dict(options) | keepalives | own))

    async def _poll(self) -> None:
        silent_s = 0.0
        while True:
            await asyncio.sleep(self._poll_s)
            silent_s += self._poll_s
            if self._watchers and (not self.listening or silent_s >= self._sweep_s):
                silent_s = 0.0
                await self._sweep()

    async def _sweep(self) -> None:
        try:
            newest = await self._store.read(_versions, list(self.watched))
        except SQLAlchemyError as error:
            log.warning("feed.poll_failed", why=str(error).partition("\n")[0])
            return
        changed = [job_id for job_id, version in newest.items() if self._seen.get(job_id) != version]
        self._seen.update((job_id, newest[job_id]) for job_id in changed if job_id in self._watchers)
        self._tick(*changed)

    def _tick(self, *job_ids: str) -> None:
        for job_id in job_ids:
            if job_id in self._watchers:
                self._ticks[job_id] += 1
                self._wake(job_id)

    def _wake(self, job_id: str) -> None:
        for waiter in self._waiting.get(job_id, ()):
            if not waiter.done():
                waiter.set_result(None)


class Watch:
    """One waiter's view of one job: take a mark, read the rows, then wait until something happened after the mark."""

    def __init__(self, feed: Feed, job_id: str) -> None:
        self._feed = feed
        self._job_id = job_id

    @property
    def over(self) -> bool:
        """True when waiting has no sense any more: the process is going down."""
        return self._feed.stopped

    def mark(self) -> int:
        """To be taken before the rows are read, so that nothing falls between the reading and the waiting."""
        return self._feed.ticks(self._job_id)

    async def beyond(self, mark: int, timeout_s: float) -> bool:
        """Wait for something after `mark`; False when `timeout_s` passed without."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._feed.wait_beyond(self._job_id, mark)
        except TimeoutError:
            return False
        return True


def _versions(session: Session, job_ids: list[str]) -> dict[str, int]:
    """Every event bumps its job's version, so an unchanged version is a job in which nothing happened."""
    rows = session.execute(select(Job.id, Job.version).where(Job.id.in_(job_ids)))
    return {job_id: version for job_id, version in rows}
