"""Threads of the judge that get a core as soon as they want one, where the system allows it.

The scheduler gives a thread that wakes up on a busy machine the core when whoever has it blocks or has used up its time
slice. A judge that wants to stop a runner at a random moment is then let in just when the runner has given up its core:
beside three busy neighbours on two cores none of 66 stops that should have found a call of 12 us found it, and 4 to 16
of 256 found the BLAS behind one; with this, 35 to 68 (docs/judge.md). SCHED_FIFO needs CAP_SYS_NICE or a limit
(RLIMIT_RTPRIO) of one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


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
