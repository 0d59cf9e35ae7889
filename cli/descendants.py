"""Which processes descend from this one, and how to make sure that none is left.

A process that becomes a *subreaper* inherits every orphan below it, so a candidate that forks twice and calls setsid()
can hide from its parent but not from here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02
# What gets the time to shut down in good order when its supervisor was killed; everything else dies at once.
_KEEPERS_OF_DATA = frozenset({"postgres", "valkey-server"})


def become_subreaper() -> None:
    """Make orphaned descendants children of this process. Does nothing where the kernel has no such thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Pids of the direct children of this process, zombies included."""
    me = os.getpid()
    return [pid for pid, parent in _parents() if parent == me]


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # pid (name) state ppid …; a name may hold spaces and parentheses, so count from the last one
            yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def kill_strays(expected: Collection[int]) -> int:
    """SIGKILL and reap every direct child that is not in `expected`; returns how many were alive.

    The children of a killed stray become ours in turn: call again, or use `leave_none`.
    """
    killed = 0
    for pid in children():
        if pid in expected:
            continue
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed


def leave_none(grace_s: float) -> None:
    """End every descendant: databases may take `grace_s` to stop by themselves, the others are killed at once."""
    deadline = time.monotonic() + grace_s
    while alive := _reap():
        patient = time.monotonic() < deadline
        for pid in alive:
            if not (patient and _program(pid) in _KEEPERS_OF_DATA):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _reap() -> list[int]:
    """Reap what has ended and return the children that still run."""
    alive = []
    for pid in children():
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                alive.append(pid)
    return alive


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""
