"""A queue of processes: who waits, and whether anybody who goes first is still alive.

A file for each that waits, locked by it: the kernel unlocks it when its process dies, and whoever looks next removes
it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_number = itertools.count()


class Queue:
    """Those who wait for one thing, in the order of their keys."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    @contextmanager
    def waiting(self, key: str) -> Iterator[Callable[[], bool]]:
        """Wait in the queue. Gives what tells whether this one is first: no living one has a key that sorts before.

        Of a process's threads with one key whoever came first is: by numbers of any width the 100th sorted before the
        99th, which three threads of short turns kept from the device for as long as they went on (12 s)."""
        name = f"{key}-{os.getpid()}-{next(_number):012}"
        made, path = self._folder / f".{name}", self._folder / name
        with made.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            made.rename(path)  # seen only when locked: else it would be taken for one of a dead process
            try:
                yield lambda: next(self._living(), None) == name
            finally:
                path.unlink()

    def any(self) -> bool:
        """Whether somebody waits."""
        return next(self._living(), None) is not None

    def _living(self) -> Iterator[str]:
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208 - see _lives
            if not name.startswith(".") and _lives(f"{self._folder}/{name}"):
                yield name


def _lives(path: str) -> bool:
    """Whether the one that waits with this file does so still; the file of a dead one is removed.

    By the system's own calls: everybody who waits asks this 100 times a second, and with paths and files it took three
    times as long (45 us, not 15; eight judges have 24 compilers that wait)."""
    try:
        place = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(place)
    Path(path).unlink(missing_ok=True)
    return False
