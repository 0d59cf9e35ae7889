"""Whether a device is shared now or had alone, and since when: what all its judges go by.

Each change from one to the other costs a GPU 0.3 to 0.4 s: whoever shares it looks every 50 ms whether anybody wants it
alone, and what a stopped process has queued runs on. Eight judges of an H200 that shared it whenever nobody waited
changed some 1,000 times in 500 s; they waited 810 of their 4,000 s to share it, and timed for 140. So it is had alone
by one after the other for some seconds, then shared for some; for less after a short turn.

A file beside the device's lock holds the state. It is written by whoever holds the lock.
"""

from __future__ import annotations

import math
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_STATE = struct.Struct("<?ddd")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How long a device is shared and had alone while both are wanted, in seconds."""

    shared_at_least_s: float
    shared_at_most_s: float
    """While somebody waits to have it alone."""
    alone_at_most_s: float
    """After that nobody starts to have it alone before it was shared."""
    linger_s: float
    """Whoever has had it alone, one workload or one kernel's configurations, often wants it again by then."""
    drain_s: float
    """What a stopped process has queued goes on running for so long: an autotuner queues 0.1 s of calls."""

    def shared_s(self, alone_s: float) -> float:
        """For how long it is shared after it was had alone for so long: a quarter of that."""
        return min(max(alone_s / 4, self.shared_at_least_s), self.shared_at_most_s)


ANY = Rhythm(0.0, 0.0, math.inf, 0.0, 0.0)
"""For a CPU, where stopping a process is stopping its work."""
GPU = Rhythm(0.5, 2.5, 10.0, 0.1, 0.25)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a device is in."""

    alone: bool
    age_s: float
    idle_s: float
    """Since somebody last had it alone."""
    alone_s: float
    """For how long it was had alone before it was shared."""


class Phases:
    """The phases of one device."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path

    def now(self) -> Phase:
        """The present one; before the first it has been shared for ever."""
        alone, since, left, alone_s = self._read()
        now = time.monotonic()
        # Seconds since the machine's start: what lies ahead is from before it.
        age_s, idle_s = (now - moment if moment <= now else math.inf for moment in (since, left))
        return Phase(alone, age_s, idle_s, alone_s)

    def seized(self, *, anew: bool = False) -> None:
        """Somebody has it alone, perhaps after another who had. `anew`: what was before counts for nothing."""
        phase, now = self.now(), time.monotonic()
        age_s = phase.age_s if phase.alone and phase.age_s < math.inf and not anew else 0.0
        self._write(True, now - age_s, now, 0.0)

    def left(self) -> None:
        """Who had it alone has done with it."""
        _alone, since, _left, _alone_s = self._read()
        self._write(True, since, time.monotonic(), 0.0)

    def joined(self) -> None:
        """Somebody shares it, perhaps with others."""
        phase, now = self.now(), time.monotonic()
        if phase.alone:
            self._write(False, now, now - phase.idle_s, max(0.0, phase.age_s - phase.idle_s))

    def _read(self) -> tuple[bool, float, float, float]:
        data = self._path.read_bytes()
        return _STATE.unpack(data) if data else (False, 0.0, 0.0, 0.0)

    def _write(self, alone: bool, since: float, left: float, alone_s: float) -> None:
        with self._path.open("r+b", buffering=0) as file:  # in one piece: others read it meanwhile
            file.write(_STATE.pack(alone, since, left, alone_s))
