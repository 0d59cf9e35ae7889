"""The device lease: shared while candidates are built, warmed and verified, exclusive while one is timed.

A lock file per physical device, beside the queue's own one-worker-per-GPU rule, so that a stray second worker cannot
disturb a timing either. The kernel releases a lock when its holder dies.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DeviceLease:
    """Locks on one device."""

    def __init__(self, folder: Path, device_name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{device_name}.lock"
        self.held_s = 0.0
        """Seconds for which this process held the device, in either mode, where they were counted."""

    @contextmanager
    def shared(self, *, counted: bool = True) -> Iterator[None]:
        """Hold the device together with other verifications. Not `counted`: what all candidates of a problem need, and
        the first of them should not pay for."""
        with self._locked(fcntl.LOCK_SH, counted=counted):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device alone."""
        with self._locked(fcntl.LOCK_EX, counted=True):
            yield

    @contextmanager
    def _locked(self, mode: int, *, counted: bool) -> Iterator[None]:
        with self._path.open("w") as file:
            fcntl.flock(file, mode)
            start = time.monotonic()
            try:
                yield
            finally:
                self.held_s += (time.monotonic() - start) * counted
