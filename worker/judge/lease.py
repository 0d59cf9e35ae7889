"""The device lease: shared while candidates are built, warmed and verified, exclusive while one is timed.

A lock file per physical device, beside the queue's own one-worker-per-GPU rule, so that a stray second worker cannot
disturb a timing either. The kernel releases a lock when its holder dies.

Such locks know no turns: where verifications overlap, a timing would wait for ever. After ten seconds it closes the
gate that verifications come through, and is next. Seven judges on one GPU had waited up to 70 s for a lease.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_PATIENCE_S = 10.0
_POLL_S = 0.02


class DeviceLease:
    """Locks on one device."""

    def __init__(self, folder: Path, device_name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{device_name}.lock"
        self._gate = folder / f"{device_name}.gate"
        self.held_s = 0.0
        """Seconds for which this process held the device, in either mode, where they were counted."""

    @contextmanager
    def shared(self, *, counted: bool = True) -> Iterator[None]:
        """Hold the device together with other verifications. Not `counted`: what all candidates of a problem need, and
        the first of them should not pay for."""
        with self._path.open("w") as file:
            with self._gate.open("w") as gate:
                fcntl.flock(gate, fcntl.LOCK_SH)
                fcntl.flock(file, fcntl.LOCK_SH)
            with self._counted(counted=counted):
                yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device alone."""
        with self._path.open("w") as file:
            if not _within(_PATIENCE_S, file):
                with self._gate.open("w") as gate:
                    fcntl.flock(gate, fcntl.LOCK_EX)
                    fcntl.flock(file, fcntl.LOCK_EX)
            with self._counted(counted=True):
                yield

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
