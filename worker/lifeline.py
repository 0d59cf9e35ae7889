"""Ties a forked child to its parent: when the worker's main process is killed, its pool dies with it.

Otherwise an orphaned evaluator would time candidates beside its successor. The kernel follows the *thread* that forked;
Celery forks its pool from the main thread. Linux only: elsewhere an orphan lives on, and the leases still keep it from
storing anything twice.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the process that forked us ends; at once if it has ended already."""
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
