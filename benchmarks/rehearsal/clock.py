"""Time that passes faster than the wall's, and ends."""

from __future__ import annotations

import time
from dataclasses import dataclass


class TimeUp(Exception):
    """The rehearsal is over."""


@dataclass(frozen=True, slots=True)
class Clock:
    """All processes of a run have the same one."""

    began: float
    """By time.monotonic(), which is one for all processes."""
    scale: float
    """Seconds of the wall for one of the rehearsal."""
    until_s: float

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return (time.monotonic() - self.began) / self.scale

    def sleep(self, seconds: float) -> None:
        """Raises TimeUp at the end."""
        left_s = self.until_s - self.now
        if left_s <= 0:
            raise TimeUp
        time.sleep(min(seconds, left_s) * self.scale)
        if seconds > left_s:
            raise TimeUp
