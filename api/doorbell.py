"""Ringing the workers after a commit, without making the client wait for Redis.

A ring that fails is no failure of the request: the work is a row, and the reaper rings for it again within seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

Ring = Callable[[str, str, str], bool]
"""ring(work_id, queue, kind): False when Redis cannot be reached. It never raises."""

# A ring takes a millisecond; while Redis is away, its connect timeout. More threads would only wait in parallel.
_THREADS = 2
# Beyond this many waiting rings the reaper is the faster way.
_MOST_WAITING = 200

log = structlog.get_logger("api")


class Doorbell:
    """Rings in the background, in a few threads of its own."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="doorbell")
        self._waiting = 0

    def ring_soon(self, bells: Sequence[tuple[str, str, str]]) -> None:
        """Ring for units of work that are committed (work id, queue, kind). Must be called on the event loop."""
        if not bells:
            return
        if self._waiting >= _MOST_WAITING:
            log.warning("doorbell.busy", work_id=bells[0][0], waiting=self._waiting)
            return
        self._waiting += 1
        rung = asyncio.get_running_loop().run_in_executor(self._threads, self._ring_all, bells)
        rung.add_done_callback(self._done)

    def close(self) -> None:
        """Forget what was not rung yet; the reaper will ring."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ring_all(self, bells: Sequence[tuple[str, str, str]]) -> bool:
        return all(self._ring(*bell) for bell in bells)  # Redis is away after the first that is lost

    def _done(self, rung: asyncio.Future[bool]) -> None:
        self._waiting -= 1
        if not rung.cancelled() and (error := rung.exception()) is not None:
            log.error("doorbell.failed", why=repr(error))
