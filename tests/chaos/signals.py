"""Signals to processes and to all that is below them, read from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def below(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads started them."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in listed.read_text().split()]
    return found


def tree(pid: int) -> list[int]:
    """The process and everything below it, parents first."""
    found = [pid]
    for each in found:
        found += [child for child in below(each) if child not in found]
    return found


def command(pid: int) -> str:
    """A process' command line, empty when it has none or is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def kill(pids: Iterable[int]) -> int:
    """SIGKILL; how many were there to get it."""
    return _send(pids, signal.SIGKILL)


def pause(pids: Iterable[int]) -> int:
    """SIGSTOP."""
    return _send(pids, signal.SIGSTOP)


def resume(pids: Iterable[int]) -> int:
    """SIGCONT."""
    return _send(pids, signal.SIGCONT)


def _send(pids: Iterable[int], number: signal.Signals) -> int:
    sent = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent
