"""A thin parent for a supervisor: whichever of the two is killed, nothing below them is left.

The guard is the process that a user sees and signals. It only waits. When the supervisor is gone, by itself or by a
kill -9, its orphans are the guard's (a subreaper) and it ends them. When the guard is killed, the supervisor gets
SIGTERM from the kernel and stops everything in order.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from cli.descendants import become_subreaper, leave_none
from cli.errors import CliError
from cli.launch import die_with_parent

_GRACE_S = 5.0
_SIGNALLED = 128
_FORWARDED = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}


def guarded(body: Callable[[], int]) -> int:
    """Run `body` in a child process and return its exit status, with no process of its left.

    Call it from a process with one thread. In the child a CliError becomes its message and exit code.
    """
    become_subreaper()
    guard = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until there is somebody to forward to
    child = os.fork()
    if child == 0:
        _run_child(body, guard)

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, _FORWARDED[signal.Signals(number)])

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    status = _wait(child)
    leave_none(_GRACE_S)
    if status > _SIGNALLED:
        name = signal.Signals(status - _SIGNALLED).name
        sys.stderr.write(f"kernelwright: the supervisor was ended by {name}; everything below it has been stopped\n")
    return status


def _wait(child: int) -> int:
    """Reap orphans until `child` ends; its exit status, as a shell would give it."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else _SIGNALLED + os.WTERMSIG(status)


def _run_child(body: Callable[[], int], guard: int) -> None:
    status = 70
    try:
        os.setsid()  # a terminal's Ctrl-C reaches the guard alone, which forwards it once
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(guard, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        status = body()
    except CliError as error:
        sys.stderr.write(f"kernelwright: {error}\n")
        status = error.exit_code
    finally:
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the child must never return into the caller's stack, whatever happened
