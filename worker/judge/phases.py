"""Whether a device is shared now or had alone, and since when: what all its judges go by.

Each change from one to the other costs a GPU 0.3 to 0.4 s: whoever shares it looks every 50 ms whether anybody wants it
alone, and what a stopped process has queued runs on. Eight judges of an H200 that shared it whenever nobody waited
changed some 1,000 times in 500 s; they waited 810 of their 4,000 s to share it, and timed for 140. So it is had alone
by one after the other for some seconds, then shared for some.

A file beside the device's lock holds the state. It is written by whoever holds the lock.
"""

from __future__ import annotations

import math
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_STATE = struct.Struct("<?dd")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How long a device is shared and had alone while both are wanted, in seconds."""

    shared_at_least_s: float
    alone_at_most_s: float
    """After that nobody starts to have it alone before it was shared."""
    linger_s: float
    """Whoever has had it alone, one workload or one kernel's configurations, often wants it again by then."""
    drain_s: float
    """What a stopped process has queued goes on running for so long: an autotuner queues 0.1 s of calls."""


ANY = Rhythm(0.0, math.inf, 0.0, 0.0)
"""For a CPU, where stopping a process is stopping its work."""
GPU = Rhythm(2.0, 10.0, 0.1, 0.25)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a device is in."""

    alone: bool
    age_s: float
    idle_s: float
    """Since somebody last had it alone."""


class Phases:
    """The phases of one device."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path

    def now(self) -> Phase:
        """The present one; before the first it has been shared for ever."""
        alone, since, left = self._read()
        now = time.monotonic()
        # Seconds since the machine's start: what lies ahead is from before it.
        return Phase(alone, now - since if since <= now else math.inf, now - left if left <= now else math.inf)

    def seized(self) -> None:
        """Somebody has it alone, perhaps after another who had."""
        alone, since, _left = self._read()
        now = time.monotonic()
        self._write(True, since if alone and since <= now else now, now)

    def left(self) -> None:
        """Who had it alone has done with it."""
        _alone, since, _left = self._read()
        self._write(True, since, time.monotonic())

    def joined(self) -> None:
        """Somebody shares it, perhaps with others."""
        alone, _since, left = self._read()
        if alone:
            self._write(False, time.monotonic(), left)

    def _read(self) -> tuple[bool, float, float]:
        data = self._path.read_bytes()
        return _STATE.unpack(data) if data else (False, 0.0, 0.0)

    def _write(self, alone: bool, since: float, left: float) -> None:
        with self._path.open("r+b", buffering=0) as file:  # in one piece: others read it meanwhile
            file.write(_STATE.pack(alone, since, left))
