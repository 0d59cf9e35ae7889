"""The device lease: shared while candidates are built, warmed and verified, exclusive while one is timed.

A lock file per physical device, beside the queue's own one-worker-per-GPU rule, so that a stray second worker cannot
disturb a timing either. The kernel releases a lock when its holder dies.

Such locks know no turns: where verifications overlap, a timing would wait for ever. After ten seconds it closes the
gate that verifications come through, and is next. Seven judges on one GPU had waited up to 70 s for a lease.

Compiling baselines takes 20 to 90 s, most of it a compiler's, and uses the device in between to choose among kernels.
Whoever does that holds a `Share`, and gives way while a timing waits.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_PATIENCE_S = 10.0
_POLL_S = 0.02
_DRAIN_S = 0.25
"""What a stopped process has queued on the device goes on running: an autotuner queues 0.1 s of calls."""


class Share:
    """Somebody's part in a device that is held together with others."""

    def __init__(self, lease: DeviceLease, file: IO[str]) -> None:
        self._lease, self._file = lease, file

    def give_way(self, stop: Callable[[], None], resume: Callable[[], None]) -> float:
        """If a timing waits: `stop` what uses the device, let the timing have it, and `resume`. The seconds it took."""
        if not self._lease.wanted():
            return 0.0
        began = time.monotonic()
        stop()
        time.sleep(_DRAIN_S)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        while self._lease.wanted():
            time.sleep(_POLL_S)
        self._lease.join(self._file)
        resume()
        return time.monotonic() - began


class DeviceLease:
    """Locks on one device."""

    def __init__(self, folder: Path, device_name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{device_name}.lock"
        self._gate = folder / f"{device_name}.gate"
        self._wanted = folder / f"{device_name}.wanted"
        self.held_s = 0.0
        """Seconds for which this process held the device, in either mode, where they were counted."""

    @contextmanager
    def shared(self, *, counted: bool = True) -> Iterator[Share]:
        """Hold the device together with other verifications. Not `counted`: what all candidates of a problem need, and
        the first of them should not pay for."""
        with self._path.open("w") as file:
            self.join(file)
            with self._counted(counted=counted):
                yield Share(self, file)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device alone."""
        with self._path.open("w") as file:
            with self._wanted.open("w") as wanted:
                fcntl.flock(wanted, fcntl.LOCK_SH)
                if not _within(_PATIENCE_S, file):
                    with self._gate.open("w") as gate:
                        fcntl.flock(gate, fcntl.LOCK_EX)
                        fcntl.flock(file, fcntl.LOCK_EX)
            with self._counted(counted=True):
                yield

    def wanted(self) -> bool:
        """Whether somebody waits to hold the device alone."""
        with self._wanted.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def join(self, file: IO[str]) -> None:
        """Lock an open lock file together with others, after whoever has closed the gate."""
        with self._gate.open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
            fcntl.flock(file, fcntl.LOCK_SH)

    @contextmanager
    def _counted(self, *, counted: bool) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.held_s += (time.monotonic() - start) * counted


def _within(limit_s: float, file: IO[str]) -> bool:
    """Whether the file could be locked in that time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
        else:
            return True
    return False
