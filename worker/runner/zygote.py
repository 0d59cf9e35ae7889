"""The zygote: imports torch and triton once, never touches CUDA, and forks one confined process per runner.

A cold start of torch costs 3 to 4.6 s on a GPU machine; a fork of this process, with a fresh CUDA context and a first
Triton launch, 0.8 s (measured on an H100). The zygote itself never runs a candidate's code.

Process tree of one runner::

    judge ── zygote ── warden ── init ── runner        (level `namespaces`: init is PID 1 of its own PID namespace)

The warden waits for init, carries its exit code out, and below `namespaces` cleans up. Init watches memory and time,
and reaps. The runner drops its privileges and runs `worker.runner.child`. SIGTERM ends the warden and everything below
it; at level `namespaces` so does whatever else kills it.

Started by the judge: `python -m worker.runner.zygote FD`, where FD is its end of a socket pair.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from worker.runner import child, sandbox
from worker.runner import kernel_calls as sys_calls
from worker.runner.protocol import PeerClosed, close_all, receive_message, send_message

_WATCH_S = 0.05
_ENDING_S = 10.0
"""For a warden that was told to end to kill what is below it and to remove the scratch, which may be 2 GB of files."""
_ROUNDS = 500
_CRASHED = 1
_PAGE_BYTES = resource.getpagesize()


def main() -> None:
    """Serve `spawn` and `reap` until the judge goes away."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sys_calls.prctl(sys_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    _preload()
    send_message(sock, {"ready": True, "level": sandbox.best_level()})
    with contextlib.suppress(PeerClosed):
        while True:
            message, fds = receive_message(sock)
            if message["op"] == "spawn":
                send_message(sock, {"pid": _spawn(sock, message, fds)})
            else:
                send_message(sock, {"code": _reap(message["pid"])})


def _preload() -> None:
    importlib.import_module("torch")
    with contextlib.suppress(ImportError):
        importlib.import_module("triton")
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy")
    gc.collect()
    gc.freeze()  # a full collection in a runner would touch, and so copy, every page of these half a million objects


def _spawn(zygote_socket: socket.socket, message: dict[str, Any], fds: list[int]) -> int:
    """Fork a warden for a runner with the four descriptors control, bell, output, and return its PID."""
    pid = os.fork()
    if pid:
        close_all(fds)
        return pid
    zygote_socket.close()
    code = sandbox.EXIT_SETUP
    try:
        code = _warden(sandbox.Confinement.from_json(message["confinement"]), message["environment"], fds)
    except OSError as problem:
        os.write(fds[2], f"sandbox: {problem}\n".encode())
    finally:
        os._exit(code)


def _reap(pid: int) -> int:
    """End a warden, if it still lives, and return its exit code (negative: the signal that ended it).

    It is asked first: without a PID namespace nobody else kills what the candidate left, and its scratch is a folder.
    """
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        code = _waited(pid, 0.1)  # a runner that just died needs a moment to carry its own code out
        if code is None:
            os.kill(pid, signal.SIGTERM)
            code = _waited(pid, _ENDING_S)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code
    return sandbox.EXIT_SETUP


def _waited(pid: int, patience_s: float) -> int | None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        waited, status = os.waitpid(pid, os.WNOHANG)
        if waited:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _warden(confinement: sandbox.Confinement, environment: dict[str, str], fds: list[int]) -> int:
    os.setsid()
    sys_calls.prctl(sys_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    isolated = confinement.level == "namespaces"
    if isolated:
        sandbox.enter_namespaces()
    else:
        sys_calls.prctl(sys_calls.PR_SET_CHILD_SUBREAPER, 1)
    user = sandbox.lone_user(confinement)
    scratch = "/tmp" if isolated else sandbox.private_scratch(user)
    init = os.fork()
    if init == 0:
        _init(confinement, environment, fds, scratch, user)
    signal.signal(signal.SIGTERM, lambda _number, _frame: _kill(init))
    _status = os.waitpid(init, 0)[1]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows is the end
    if not isolated:
        _kill_descendants()
        # Not shutil.rmtree, which calls itself for each of 3,000 folders in each other, and Python ends it at 1,000.
        subprocess.run(["rm", "-rf", "--", scratch], stderr=subprocess.DEVNULL, check=False)
    code = os.waitstatus_to_exitcode(_status)
    return code if code >= 0 else 128 - code


def _init(
    confinement: sandbox.Confinement, environment: dict[str, str], fds: list[int], scratch: str, user: int
) -> None:
    """First process of the runner's namespace: build the root, fork the runner, watch it, carry its exit code."""
    code = sandbox.EXIT_SETUP
    try:
        sys_calls.prctl(sys_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if confinement.level == "namespaces":
            sandbox.build_root(confinement)
        runner = os.fork()
        if runner == 0:
            _runner(confinement, environment, fds, scratch, user)
        close_all(fds)
        code = _watch(runner, confinement.limits)
    except OSError as problem:
        with contextlib.suppress(OSError):
            os.write(fds[2], f"sandbox: {problem}\n".encode())
    finally:
        os._exit(code)


def _runner(
    confinement: sandbox.Confinement, environment: dict[str, str], fds: list[int], scratch: str, user: int
) -> None:
    code = sandbox.EXIT_SETUP
    try:
        control, bell, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        sandbox.confine(confinement, scratch, user)
        os.environ.clear()
        os.environ.update({name: value.replace("$SCRATCH", scratch) for name, value in environment.items()})
        os.environ.update({"HOME": scratch, "TMPDIR": scratch})
        os.chdir(scratch)
        sys.argv[:] = [""]  # as where somebody types: one candidate was right under the name of this file alone
        code = _CRASHED  # from here on whatever goes wrong is the candidate's doing
        code = child.serve(socket.socket(fileno=control), socket.socket(fileno=bell))
    except BaseException:  # noqa: BLE001 - the last words of a process between fork and _exit
        os.write(2, f"runner: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)


def _watch(runner: int, limits: sandbox.Limits) -> int:
    """Wait for the runner; kill it past its memory or time. Reaps whatever is reparented to us meanwhile."""
    deadline = time.monotonic() + limits.wall_s
    while True:
        with contextlib.suppress(ChildProcessError):
            waited, status = os.waitpid(-1, os.WNOHANG)
            if waited == runner:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if waited:
                continue
        if _resident_bytes() > limits.memory_bytes:
            os.kill(runner, signal.SIGKILL)
            return sandbox.EXIT_MEMORY
        if time.monotonic() > deadline:
            os.kill(runner, signal.SIGKILL)
            return sandbox.EXIT_DEADLINE
        time.sleep(_WATCH_S)


def _resident_bytes() -> int:
    """Resident memory of this process's descendants (proportional sharing with the zygote is ignored)."""
    return sum(_resident_of(pid) for pid in _descendants(os.getpid()))


def _resident_of(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _descendants(root: int) -> list[int]:
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = [int(text) for text in (task / "children").read_text().split()]
                found += children
                waiting += children
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_descendants() -> None:
    """Without a PID namespace: kill what the candidate left behind; the warden is a subreaper, so it is below us.

    Done when the kernel knows no child of ours: the list in /proc may lack some while others end (proc(5)).
    """
    for _round in range(_ROUNDS):
        for pid in _descendants(os.getpid()):
            _kill(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)
            continue
        return


if __name__ == "__main__":
    main()
