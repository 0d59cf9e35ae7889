"""What each judge did and waited for, and when."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rehearsal.clock import Clock

ALONE, SHARED = "works alone", "works beside others"
TURN = "works alone in a turn"
ROOM, COMPILED = "waits for room", "waits for baselines being compiled"
TO_SHARE, TO_BE_ALONE, FOR_A_TURN = "waits to share", "waits to be alone", "waits for a turn"
AHEAD, JUDGED, SYSTEM, AGAIN = "compiling ahead", "judging", "system checks", "judging again, and the control"
DONE = "certified"


@dataclass(frozen=True, slots=True)
class Interval:
    """Something from one moment to another, in seconds of the rehearsal."""

    kind: str
    judge: int
    main: bool
    """Whether the judge itself did, not a thread of it."""
    start: float
    end: float

    @property
    def took_s(self) -> float:
        return self.end - self.start


class Trace:
    """Of one judge; any of its threads may write."""

    def __init__(self, judge: int, clock: Clock) -> None:
        self._judge, self._clock = judge, clock
        self._found: list[Interval] = []

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """Note that this lasts as long as it is held."""
        began = self._clock.now
        try:
            yield
        finally:
            self.since(kind, began)

    def since(self, kind: str, began: float) -> None:
        """Note what began at `began` and ends now."""
        main = threading.current_thread() is threading.main_thread()
        self._found.append(Interval(kind, self._judge, main, began, self._clock.now))

    def write(self, path: Path) -> None:
        """Keep it."""
        rows = [[each.kind, each.judge, each.main, each.start, each.end] for each in self._found]
        path.write_text(json.dumps(rows))


def read(folder: Path) -> list[Interval]:
    """What all judges wrote."""
    return [Interval(*row) for path in sorted(folder.glob("*.trace")) for row in json.loads(path.read_text())]
