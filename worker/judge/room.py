"""Room in a GPU's memory: judges that share a device wait for each other here, instead of running out of it.

A judge says what its problem will need before it allocates any, and waits until that is free: finalists first, the
others in turn, but whoever fits into what is left may pass one that needs more, for some minutes; and whoever is alone
never waits. A judge that is
idle for some seconds, or has been at work for long, leaves when somebody waits. Without this, seven judges of the
bundled problems on one H200 (140 GiB) left 40 of 59 without a verdict.

The file beside the device's lock says who has how much. Entries of processes that died count for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

log = structlog.get_logger()

_POLL_S = 0.2
_SHARE = 1.5
"""Of the device's memory that may be promised. Judges of 48 problems held 0.4 to 1.2 times what they had said (measured
on an H200), but four to six at a time 0.3 to 0.75 times the sum of it: they are seldom at their largest together. With
1.25 twelve judges of four H100s waited for room for a third of their time, while 40 of 79 GiB were in use (58 or less
for nine seconds of ten), and truths took twice what they take now. Who finds a device full is judged again.
What they say has been less since (eager's results of large cases are parked, and what runners give back counts once
and not for each workload): nobody has measured that yet."""
_PASSING_AT_ONCE = 2
_MORE_TIMES, _LESS_TIMES, _MOST_TIMES = 1.4, 0.9, 2.0
"""What a problem for which it was too little asks for the next time, and after it was enough."""
_PATIENCE_S = 300.0
"""Whoever waits for longer is let in after the next answer, even if this judge has more to do. With one minute a
finalist that had just been judged waited up to 167 s to be prepared once more for its certificate."""
_OVERTAKEN_S = 300.0
"""For so long those who come later may have room first, if they fit into what is left. Strictly in turn a problem of
6 GiB waited 216 s behind one of 54, while 61 of an H100's 79 GiB were free."""
_FINALIST_OVERTAKEN_S = 60.0
"""The same of a finalist's second judgement, which also goes before those that came earlier: what has been done for it
is of use only when it ends."""
GRACE_S = 5.0
"""A judge that waits for a question is idle after so long: to one candidate's verdict the service mostly answers with
another, or asks for its certificate, and that takes it a second or two. In a rehearsal of eight judges in which each
left after one second, every third candidate's judge gave up its room to wait 100 to 400 s for it (a simulation:
`python -m benchmarks.rehearsal`)."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one process has, or waits for. Entries stand in the order in which they came."""

    pid: int
    born: str
    """When the process began, by the system's clock: a process id is used again."""
    nbytes: int
    held: bool
    since: float
    """Unix time."""
    passing: int = 0
    """Bytes that it needs at times, on top of `nbytes`."""
    finalist: bool = False
    """Whether it is for a second judgement."""

    def covers(self, other: _Entry) -> bool:
        """Whether it is held and no smaller."""
        return self.held and self.nbytes >= other.nbytes and self.passing >= other.passing

    @property
    def overtaken(self) -> bool:
        """Whether others have gone before it for long enough."""
        return time.time() - self.since > (_FINALIST_OVERTAKEN_S if self.finalist else _OVERTAKEN_S)


class Room:
    """This process's part in a device's memory."""

    def __init__(self, folder: Path, device_name: str, total: int) -> None:
        """`total`: bytes of the device's memory."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{device_name}.room"
        self._device, self._total = total, int(_SHARE * total)
        self._pid, self._born = os.getpid(), _born(os.getpid())

    def take(self, nbytes: int, passing: int = 0, *, finalist: bool = False) -> None:
        """Wait until so many bytes are free, and have them instead of what this process had before; it does not wait
        for less than that.

        `passing`: bytes for which all judges share the room of the two that need most. While results are retained a
        judge has the device to itself, and truths are made in short steps. `finalist`: goes before others who wait.
        """
        began = time.monotonic()
        mine = _Entry(self._pid, self._born, nbytes, False, time.time(), passing, finalist)
        with self._entries() as entries:
            if any(self._is_mine(entry) and entry.covers(mine) for entry in entries):
                entries[:] = [replace(mine, held=True) if self._is_mine(entry) else entry for entry in entries]
                return
            others = self._others(entries)
            behind = [entry for entry in others if finalist and not entry.held and not entry.finalist]
            entries[:] = [*(entry for entry in others if entry not in behind), mine, *behind]
        while not self._let_in():
            time.sleep(_POLL_S)
        if (waited_s := time.monotonic() - began) > 1:
            log.info("room.waited", waited_s=round(waited_s, 1), gib=round(nbytes / (1 << 30), 1))

    def keep(self, nbytes: int, passing: int = 0) -> None:
        """Give back what this process has beyond these bytes."""
        with self._entries() as entries:
            for place, entry in enumerate(entries):
                if self._is_mine(entry):
                    less = min(nbytes, entry.nbytes), min(passing, entry.passing)
                    entries[place] = replace(entry, nbytes=less[0], passing=less[1])

    @property
    def all(self) -> int:
        """What whoever takes it has to itself: more bytes than the device has."""
        return self._total

    @property
    def has_all(self) -> bool:
        """Whether this process has the device to itself because it took `all`."""
        return self._held >= self._total

    @property
    def promised(self) -> int:
        """Bytes of the device that this process has, without those that are needed at times."""
        return min(self._device, self._held)

    @property
    def _held(self) -> int:
        with self._entries() as entries:
            return sum(entry.nbytes for entry in entries if self._is_mine(entry) and entry.held)

    def leave(self) -> None:
        """Give back what this process has."""
        with self._entries() as entries:
            entries[:] = self._others(entries)

    def wanted(self, *, idle: bool) -> bool:
        """Whether somebody waits: at all where this process is `idle`, else for longer than five minutes."""
        with self._entries() as entries:
            patience_s = 0.0 if idle else _PATIENCE_S
            held = any(entry.held for entry in entries if self._is_mine(entry))
            return held and any(not entry.held and time.time() - entry.since > patience_s for entry in entries)

    @property
    def crowded(self) -> bool:
        """Whether another judge has a part of the device's memory."""
        with self._entries() as entries:
            return any(entry.held for entry in self._others(entries))

    def _let_in(self) -> bool:
        """Have what this process waits for, if it is its turn and there is room."""
        with self._entries() as entries:
            held = [entry for entry in entries if entry.held]
            for place, entry in enumerate(entries):
                if entry.held:
                    continue
                fits = not held or _taken([*held, entry]) <= self._total
                if self._is_mine(entry):
                    if fits:
                        entries[place] = replace(entry, held=True)
                    return fits
                if fits or entry.overtaken:
                    return False
            raise RuntimeError(f"{self._path} lost the entry of process {self._pid}: was it removed?")

    def _others(self, entries: list[_Entry]) -> list[_Entry]:
        return [entry for entry in entries if not self._is_mine(entry)]

    def _is_mine(self, entry: _Entry) -> bool:
        return (entry.pid, entry.born) == (self._pid, self._born)

    @contextmanager
    def _entries(self) -> Iterator[list[_Entry]]:
        """The entries of living processes, to be changed: nobody else reads or writes them meanwhile."""
        kept = self._path.with_suffix(".json")
        with self._path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = [_Entry(**entry) for entry in json.loads(kept.read_text() if kept.exists() else "[]")]
            entries = [entry for entry in found if _born(entry.pid) == entry.born]
            yield entries
            if entries != found:
                partial = kept.with_suffix(".part")  # whoever is killed while writing leaves the old one
                partial.write_text(json.dumps([asdict(entry) for entry in entries]))
                partial.replace(kept)


class Shortfall:
    """By how much a problem needs more room than expected; kept on disk, for all judges of a machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def times(self) -> float:
        """What is to be asked for, in terms of what is expected."""
        with contextlib.suppress(OSError, ValueError):  # none yet, or cut off by a full disk
            return min(_MOST_TIMES, max(1.0, float(self._path.read_text())))
        return 1.0

    def add(self) -> None:
        """It was not enough."""
        self._keep(_MORE_TIMES * self.times)

    def lessen(self) -> None:
        """It was enough; perhaps less would be."""
        if self.times > 1.0:
            self._keep(_LESS_TIMES * self.times)

    def _keep(self, times: float) -> None:
        partial = self._path.with_suffix(f".{os.getpid()}.part")
        partial.write_text(str(times))
        partial.replace(self._path)


def _taken(entries: Sequence[_Entry]) -> int:
    """Bytes that these need together."""
    return sum(entry.nbytes for entry in entries) + sum(sorted(entry.passing for entry in entries)[-_PASSING_AT_ONCE:])


def _born(pid: int) -> str:
    """The start of a process in clock ticks after the machine's, or nothing where there is none. One that has ended is
    none, also while nobody has asked for its exit code: in a container often nobody ever does."""
    with contextlib.suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return "" if state in "ZX" else rest[18]
    return ""
