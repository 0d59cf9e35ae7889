"""A runner that is not being called does not run: its processes are stopped while others are timed.

Otherwise a candidate's idle threads could eat the bandwidth that a baseline is timed with, or keep its own inputs in
the cache while the judge evicts them. SIGSTOP cannot be caught, and it reaches into a PID namespace from outside.

But SIGCONT ends a stop, whoever sends it: a timer of the candidate's own did (`timer_create` with that signal), some
milliseconds after each stop, and worked ahead on the new inputs (16.3 times eager instead of 2.1). The sandbox refuses
the ways to it that are known (`worker.runner.kernel_calls`). Here the judge sees to it that a stop is one, and looks
when it ends whether it was: whoever is stopped uses no processor time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass, replace

from worker.judge.runners import quiet

_REST_S = 0.02
"""For a tree to come to rest. A busy process does within 0.3 ms, a thread that waits for a core when it gets one."""
_LOOK_S = 5e-5
"""Before each look; with the kernel's own delay 0.1 ms."""
_RESUME_S = 1e-4
"""From SIGCONT until all threads are back in their waits; one that warms a cache meanwhile gets 1 MB into it."""
_BROKEN_S = 1e-3
"""Of processor time used in one stop. Whoever came to rest uses none, or 0.5 ms at most (once in 3,000 stops)."""

_MONOTONIC_COARSE = 6
_TICK_S = time.clock_getres(_MONOTONIC_COARSE)
"""The kernel's: what a thread uses on another core is counted when it leaves that core, or at the next tick (4 ms)."""
_TGKILL = 234
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Stillness:
    """What the stops of a runner were, all that have ended."""

    stops: int = 0
    broken: int = 0
    """In which it used more than a millisecond of processor time, or to which it could not be brought."""
    used_s: float = 0.0
    """Processor time of its processes in all stops together."""

    def since(self, before: Stillness) -> Stillness:
        """What came on top of what was told `before`."""
        return Stillness(self.stops - before.stops, self.broken - before.broken, self.used_s - before.used_s)


class Freezer:
    """Stops and resumes one runner and whatever it started."""

    def __init__(self, warden: int) -> None:
        self._warden = warden
        self._ran_ns: dict[int, int] = {}
        """By process, when it had come to rest."""
        self._uncounted_s = 0.0
        """What may have been used before that without being counted yet: by threads whose clock did not move and that
        had not left their core. 14 of 583 stops of an honest candidate on a loaded host were called broken for 2 ms
        each; waiting until all threads say that they are stopped makes a stop ten times as long."""
        self.frozen = False
        self.stillness = Stillness()

    def freeze(self) -> None:
        """Stop everything below the sandbox's first process, and wait until it has stopped; processes that are born
        meanwhile are found again."""
        if self.frozen:
            return
        began = time.monotonic()
        marked_ns: dict[int, int] | None = None
        while True:
            tree = quiet.runner_tree(self._warden)
            for pid in tree:
                _stop(pid)
            time.sleep(_LOOK_S)
            rested_ns = self._at_rest(tree)
            passed_s = time.monotonic() - began
            if marked_ns is None and passed_s > _REST_S / 2:
                marked_ns = _ran_ns(tree)  # what it uses from now on counts, if it is not brought to rest
            if rested_ns is not None or passed_s > _REST_S:
                break
        self._ran_ns = rested_ns if rested_ns is not None else marked_ns or {}
        late = sum(map(quiet.threads_on_their_way, tree)) if rested_ns is not None else 0
        self._uncounted_s = _TICK_S * min(late, os.cpu_count() or 1)
        self.frozen = True

    def thaw(self) -> None:
        """Let it run again, and count the stop."""
        if not self.frozen:
            return
        tree = quiet.runner_tree(self._warden)
        # One that was born meanwhile counts with all it has used: nobody is born of the stopped.
        used_s = sum(max(0, ran - self._ran_ns.get(pid, 0)) for pid, ran in _ran_ns(tree).items()) / 1e9
        for pid in tree:
            _continue(pid)
        self.frozen = False
        told = self.stillness
        broken = told.broken + (used_s > _BROKEN_S + self._uncounted_s)
        self.stillness = replace(told, stops=told.stops + 1, broken=broken, used_s=told.used_s + used_s)
        time.sleep(_RESUME_S)

    def _at_rest(self, tree: list[int]) -> dict[int, int] | None:
        """The processor time of each process, if all are stopped, none used any between two looks and none was born."""
        before = _ran_ns(tree)
        if not all(quiet.stopped(pid) for pid in tree) or set(quiet.runner_tree(self._warden)) != set(tree):
            return None
        return before if _ran_ns(tree) == before else None


def _stop(pid: int) -> None:
    """By a signal to each thread, so that one that has a core stops all others at once.

    What is sent to a process goes to its main thread, and no other stops before that has had a core: with four busy
    threads on two cores that others used too, 14 of 1,000 stops took longer than 20 ms, and in eight of them the other
    threads used up to 12 ms of processor time after that. Now in none.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - quicker, as in `quiet`
            _libc.syscall(_TGKILL, pid, int(thread), int(signal.SIGSTOP))


def _ran_ns(tree: list[int]) -> dict[int, int]:
    return {pid: quiet.processor_ns(pid) for pid in tree}


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGCONT)
