"""Threads that get a core as soon as they want one, where the system allows it: the judge's that samples a runner, and
on a GPU all that are timed with the judge that times them.

The scheduler gives a thread that wakes up on a busy machine the core when whoever has it blocks or has used up its time
slice. A judge that wants to stop a runner at a random moment is then let in just when the runner has given up its core:
beside three busy neighbours on two cores none of 66 stops that should have found a call of 12 us found it, and 4 to 16
of 256 found the BLAS behind one; with this, 35 to 68 (docs/judge.md). SCHED_FIFO needs CAP_SYS_NICE or a limit
(RLIMIT_RTPRIO) of one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_FIRST = -20


@contextlib.contextmanager
def at_once() -> Iterator[bool]:
    """The calling thread goes before all ordinary ones until the end; gives whether it does.

    Threads and processes that it starts do not inherit this. For work that waits nearly all the time: the system takes
    the core away from others for it.
    """
    policy = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, os.sched_param(0))


@contextlib.contextmanager
def preferred(processes: Iterable[int | None]) -> Iterator[bool]:
    """The calling thread and all threads of these processes get 87 times an ordinary one's share of a contested core
    until the end (niceness -20, which needs CAP_SYS_NICE); gives whether they do.

    They wait for each other without sleeping, for which a system holds SCHED_FIFO up by 50 ms in each second. Beside
    three judges that compiled and compared tensors, calls of 5 us took 15 to 26 in half of the chains (H200).
    """
    threads = [0, *(thread for process in processes if process is not None for thread in _threads(process))]
    before = {thread: niceness for thread in threads if (niceness := _niceness(thread)) is not None}
    done = [_set(thread, _FIRST) for thread in before]
    try:
        yield all(done)
    finally:
        for thread, niceness in before.items():
            _set(thread, niceness)


def _threads(process: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:  # it has ended
        return []


def _niceness(thread: int) -> int | None:
    """None when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpriority(os.PRIO_PROCESS, thread)
    return None


def _set(thread: int, niceness: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
        return True
    return False
