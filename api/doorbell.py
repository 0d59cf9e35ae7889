"""Ringing the workers after a commit, without making the client wait for Redis.

A ring that fails is no failure of the request: the work is a row, and the reaper rings for it again within seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

Bell = tuple[str, str, str]
"""Work id, queue, kind."""
Ring = Callable[[Sequence[Bell]], object]
"""Rings for each of them in one trip. It says in the log what it could not, and never raises."""

TOGETHER_S: Final = 0.05
"""The first is rung for at once. What is submitted in the next 50 ms is rung for together: at 100 submissions a second
ringing for each took a third of the API's CPU."""
_MOST_WAITING: Final = 1000
"""Beyond this many the reaper is the faster way."""

log = structlog.get_logger("api")


class Doorbell:
    """Rings in the background, in a thread of its own. Lives on one event loop."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="doorbell")
        self._waiting: list[Bell] = []
        self._ringing: asyncio.Task[None] | None = None

    def ring_soon(self, bells: Sequence[Bell]) -> None:
        """Ring for units of work that are committed. Must be called on the event loop."""
        if not bells:
            return
        if len(self._waiting) >= _MOST_WAITING:
            log.warning("doorbell.busy", work_id=bells[0][0], waiting=len(self._waiting))
            return
        self._waiting.extend(bells)
        if self._ringing is None:
            self._ringing = asyncio.create_task(self._ring_waiting(), name="doorbell")

    def close(self) -> None:
        """Forget what was not rung yet; the reaper will ring."""
        if self._ringing is not None:
            self._ringing.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ring_waiting(self) -> None:
        try:
            while self._waiting:
                bells, self._waiting = self._waiting, []
                await asyncio.get_running_loop().run_in_executor(self._thread, self._ring, bells)
                await asyncio.sleep(TOGETHER_S)
        except Exception:  # noqa: BLE001 - a boundary: nobody waits for this task
            log.exception("doorbell.failed")
        finally:
            self._ringing = None
