"""What polls of jobs were answered last, remembered while changes can be heard.

Most requests of a service that is watched ask whether a job is still what it was. Each event of a job notifies in its
transaction (`db.events`), and what is remembered of that job is forgotten; while nobody listens nothing is remembered.
So a poll is as new as the notification, which takes milliseconds, and five seconds old if it is lost. Others move the
place of a job that waits without touching it: it is remembered as long as places are held (`api.places`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

REMEMBERED_S: Final = 5.0
MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Glance:
    """How a job's resource was answered for: its entity tag and its headers."""

    tag: str
    headers: dict[str, str]


class Glances:
    """Lives on one event loop. `listening` says whether changes of jobs are heard."""

    def __init__(self, listening: Callable[[], bool]) -> None:
        self._listening = listening
        self._known: dict[str, tuple[float, Glance]] = {}
        self._reading: dict[str, object] = {}

    def changed(self, job_id: str | None) -> None:
        """Something has happened in this job; None: nobody knows in which."""
        for record in (self._known, self._reading):
            if job_id is None:
                record.clear()
            else:
                record.pop(job_id, None)

    def of(self, job_id: str) -> Glance | None:
        """What is known, if it is new enough."""
        until, glance = self._known.get(job_id, (0.0, None))
        return glance if time.monotonic() < until and self._listening() else None

    def reading(self, job_id: str) -> object:
        """To be taken before the rows are read: what was read before a change may not be remembered after it."""
        if len(self._reading) >= MOST:
            self._reading.clear()
        mark = self._reading[job_id] = object()
        return mark

    def remember(self, job_id: str, mark: object, glance: Glance, good_for_s: float = REMEMBERED_S) -> None:
        """Keep what was read, unless the job has changed since `mark` was taken."""
        if self._reading.get(job_id) is not mark or good_for_s <= 0 or not self._listening():
            return
        del self._reading[job_id]
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[job_id] = time.monotonic() + good_for_s, glance
