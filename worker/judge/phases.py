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
from typing import NamedTuple

_FORMAT = struct.Struct("<?dddd")


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
    slice_s: float = 1.0
    """For so long timings have it while turns are waited for, and turns while timings are."""

    def shared_s(self, alone_s: float) -> float:
        """For how long it is shared after it was had alone for so long: a quarter of that."""
        return min(max(alone_s / 4, self.shared_at_least_s), self.shared_at_most_s)


ANY = Rhythm(0.0, 0.0, math.inf, 0.0, 0.0)
"""For a CPU, where stopping a process is stopping its work."""
GPU = Rhythm(1.5, 4.0, 10.0, 0.1, 0.25, slice_s=0.5)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a device is in."""

    alone: bool
    age_s: float
    idle_s: float
    """Since somebody last had it alone."""
    alone_s: float
    """For how long it was had alone before it was shared."""
    untimed_s: float
    """Since somebody was last timed."""


class _State(NamedTuple):
    """What the file holds: moments in seconds since the machine's start."""

    alone: bool = False
    since: float = 0.0
    left: float = 0.0
    alone_s: float = 0.0
    timed: float = 0.0


class Phases:
    """The phases of one device."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path

    def now(self) -> Phase:
        """The present one; before the first it has been shared for ever."""
        state, now = self._read(), time.monotonic()
        # What lies ahead is from before the machine's start.
        age_s, idle_s, untimed_s = (
            now - moment if moment <= now else math.inf for moment in (state.since, state.left, state.timed)
        )
        return Phase(state.alone, age_s, idle_s, state.alone_s, untimed_s)

    def seized(self, *, anew: bool = False) -> None:
        """Somebody has it alone, perhaps after another who had. `anew`: what was before counts for nothing."""
        state, now = self._read(), time.monotonic()
        goes_on = state.alone and state.since <= now and not anew
        self._write(state._replace(alone=True, since=state.since if goes_on else now, left=now, alone_s=0.0))

    def left(self, *, timed: bool = False) -> None:
        """Who had it alone has done with it, after a timing or a turn."""
        state, now = self._read(), time.monotonic()
        self._write(state._replace(alone=True, left=now, timed=now if timed else state.timed))

    def joined(self) -> None:
        """Somebody shares it, perhaps with others."""
        state = self._read()
        if state.alone:
            alone_s = max(0.0, state.left - state.since)
            self._write(state._replace(alone=False, since=time.monotonic(), alone_s=alone_s))

    def _read(self) -> _State:
        data = self._path.read_bytes()
        return _State(*_FORMAT.unpack(data)) if data else _State()

    def _write(self, state: _State) -> None:
        with self._path.open("r+b", buffering=0) as file:  # in one piece: others read it meanwhile
            file.write(_FORMAT.pack(*state))
