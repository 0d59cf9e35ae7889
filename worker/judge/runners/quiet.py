"""Was a CPU sample disturbed? The kernel's own count of the time that a process waited for a core says so.

On two cores one busy neighbour turns a 0.5 ms kernel into 8 or 12 ms whenever a thread of it has to wait for a time
slice (4 ms each, seen on a shared machine): such samples say nothing about the kernel. /proc/PID/task/*/schedstat holds
each thread's run-queue delay. The judge reads it, outside the timed interval, and a candidate cannot write it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():  # any thread may have forked
            with contextlib.suppress(OSError, ValueError):
                found += [int(text) for text in (task / "children").read_text().split()]
    return found
