"""Whether devices are held, looked at from outside: by trying their locks."""

from __future__ import annotations

import fcntl
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

EVERY_S = 0.02


class Watch:
    """Looks at all the locks of a folder until it is closed. A look holds a free lock for microseconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: Counter[str] = Counter()
        self._looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def shares(self) -> dict[str, float]:
        """Of each device: in which share of the looks somebody had it."""
        return {name: held / max(1, self._looks) for name, held in sorted(self._held.items())}

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            for lock in self._folder.glob("*.lock"):
                self._held[lock.stem] += _is_held(lock)
            self._looks += 1


def _is_held(lock: Path) -> bool:
    with lock.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
