"""On a CPU: OpenMP's workers each on a core of its own while they are timed, the judge beside who calls them.

A worker that wakes up may be put on the core of the thread that it works for, and waits there until that one sleeps,
though another core is idle: on two cores the same call of RMSNorm took 0.5 or 1.5 ms, for the candidate and for the
baselines each as it happened (measured; docs/judge.md has what came of binding them, on two cores only).

Only threads that wait in an OpenMP runtime are bound: the caller, and threads that a candidate makes itself, run where
the system puts them. The workers of each runtime are spread over all cores but the first, which is the caller's.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from worker.judge.runners import quiet
from worker.judge.runners.pointers import Region, executable

_RUNTIME = re.compile(r"lib(gomp|iomp5|omp)\b")
_STACK_BYTES = 512
"""Of a thread that sleeps in a runtime: the first return address into it is 8 to 24 bytes from the top (measured)."""
_WORD = struct.Struct("=Q")


@contextlib.contextmanager
def beside_callers() -> Iterator[None]:
    """Keep the calling thread on the first core; afterwards it may run where it could before."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def spread(warden: int, cores: list[int]) -> int:
    """Bind the OpenMP workers of a runner that rests, each to one of `cores` but the first; how many that were."""
    if len(cores) < 2:
        return 0
    bound: Counter[str] = Counter()
    for pid in quiet.runner_tree(warden):
        with contextlib.suppress(OSError, ValueError):  # it ended, or the judge may not read or bind it, or nonsense
            regions = [each for each in executable(Path(f"/proc/{pid}/maps").read_text()) if _is_runtime(each)]
            for thread in sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()):
                runtime = _waits_in(pid, thread, regions) if thread != pid else None
                if runtime is not None:
                    place = f"{pid} {runtime}"
                    os.sched_setaffinity(thread, {cores[1 + bound[place] % (len(cores) - 1)]})
                    bound[place] += 1
    return bound.total()


def _is_runtime(region: Region) -> bool:
    return bool(_RUNTIME.match(Path(region.path).name))


def _waits_in(pid: int, thread: int, regions: list[Region]) -> str | None:
    """The path of the OpenMP runtime in whose code a thread made the system call that it sleeps in."""
    call = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
    if len(call) < 3:
        return None  # it runs
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(int(call[-2], 16))
        stack = memory.read(_STACK_BYTES)
    words = [word for (word,) in _WORD.iter_unpack(stack[: len(stack) // _WORD.size * _WORD.size])]
    found = (region.path for word in words for region in regions if region.start <= word < region.end)
    return next(found, None)
