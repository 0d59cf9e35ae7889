"""Was a CPU sample disturbed? The kernel's own count of the time that a process waited for a core says so.

On two cores one busy neighbour turns a 0.5 ms kernel into 8 or 12 ms whenever a thread of it has to wait for a time
slice (4 ms each, seen on a shared machine): such samples say nothing about the kernel. /proc/PID/task/*/schedstat holds
each thread's run-queue delay. The judge reads it, outside the timed interval, and a candidate cannot write it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_RESTS = ("T", "Z", "X")
"""States of a process that does nothing: stopped, or dead."""


def runner_of(warden: int) -> int | None:
    """The PID of the process that runs the candidate: the grandchild of its warden (see `worker.runner.zygote`)."""
    pid = warden
    for _generation in range(2):
        children = _children(pid)
        if not children:
            return None
        pid = children[0]
    return pid


def runner_tree(warden: int) -> list[int]:
    """The process that runs the candidate and all its descendants, but not the sandbox's own first process."""
    init = _children(warden)
    return _below(init[0]) if init else []


def waited_s(pid: int) -> float:
    """Seconds for which the threads of a process have been ready but without a core, all together."""
    return _schedstat_s(pid, 1)


def overloaded() -> bool:
    """Whether twice as many processes as there are cores have wanted one, over the last minute."""
    return os.getloadavg()[0] > 2 * (os.cpu_count() or 1)


def caller_waited_s(warden: int) -> float:
    """Seconds for which the runner's main thread, which makes the calls, has been ready but without a core.

    Of no other thread: a candidate could start some that wait, and hide work behind them.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{runner_of(warden)}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def ran_s(pid: int) -> float:
    """Seconds for which the threads of a process have had a core, all together."""
    return _schedstat_s(pid, 0)


def processor_ns(pid: int) -> int:
    """Processor time of all threads of a process, dead ones too; 0 when it is gone.

    By its clock (`clock_getcpuclockid` makes the number so), whoever owns it: one system call of 1.2 us, where `ran_s`
    reads a file for each thread (8 us each) and does not know those that have ended.
    """
    with contextlib.suppress(OSError):
        return time.clock_gettime_ns((~pid << 3) | 2)
    return 0


def stopped(pid: int) -> bool:
    """Whether a process is stopped, or over, as its main thread says."""
    return _rests(f"/proc/{pid}/stat")


def threads_on_their_way(pid: int) -> int:
    """How many threads of a process are not stopped yet. Reading costs 8 us for each."""
    threads: list[str] = []
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - with Path it takes six times as long (`_children`)
    return sum(not _rests(f"/proc/{pid}/task/{thread}/stat") for thread in threads)


def _rests(stat: str) -> bool:
    try:
        return _read(stat).rpartition(b")")[2].split()[0].decode() in _RESTS
    except (OSError, IndexError):
        return True


def _schedstat_s(pid: int, column: int) -> float:
    total_ns = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                total_ns += int((task / "schedstat").read_text().split()[column])
    return total_ns / 1e9


def _below(pid: int) -> list[int]:
    found: list[int] = []
    waiting = _children(pid)
    while waiting:
        child = waiting.pop()
        found.append(child)
        waiting += _children(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for task in os.listdir(folder):  # noqa: PTH208 - any thread may have forked; with Path it took six times as long
            with contextlib.suppress(OSError, ValueError):
                found += [int(text) for text in _read(f"{folder}/{task}/children").split()]
    return found


def _read(path: str) -> bytes:
    """A file of /proc, at the least cost: thousands are read in a judgement."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = part = os.read(file, 4096)
        while part:
            part = os.read(file, 4096)
            content += part
    finally:
        os.close(file)
    return content
