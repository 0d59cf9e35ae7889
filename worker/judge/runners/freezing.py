"""A runner that is not being called does not run: its processes are stopped while others are timed.

Otherwise a candidate's idle threads could eat the bandwidth that a baseline is timed with, or keep its own inputs in
the cache while the judge evicts them. SIGSTOP cannot be caught, and it reaches into a PID namespace from outside.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from worker.judge.runners import quiet

_ROUNDS = 5
_RESUME_S = 1e-4
"""From SIGCONT until all threads are back in their waits; one that warms a cache meanwhile gets 1 MB into it."""


class Freezer:
    """Stops and resumes one runner and whatever it started."""

    def __init__(self, warden: int) -> None:
        self._warden = warden
        self.frozen = False

    def freeze(self) -> None:
        """Stop everything below the sandbox's first process; processes that are born meanwhile are found again."""
        if self.frozen:
            return
        stopped: set[int] = set()
        for _round in range(_ROUNDS):
            found = set(quiet.runner_tree(self._warden)) - stopped
            if not found:
                break
            for pid in found:
                _signal(pid, signal.SIGSTOP)
            stopped |= found
        self.frozen = True

    def thaw(self) -> None:
        """Let it run again."""
        if not self.frozen:
            return
        for pid in quiet.runner_tree(self._warden):
            _signal(pid, signal.SIGCONT)
        self.frozen = False
        time.sleep(_RESUME_S)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
