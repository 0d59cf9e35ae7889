"""A network of one's own for the programs of a test: a loopback on which every port is free, and nothing behind it.

Pages say http://127.0.0.1:8080, several test processes read pages at the same time, and that port may be in use. Where
the kernel refuses such a network the machine's own is used, by one reader after another.

    python -m tests.support.guides.network new COMMAND...    runs the command in a new one
    python -m tests.support.guides.network PID COMMAND...    runs it in the one of that process
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.launch import map_identity
from tests.support.people import ROOT

_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_PORT = 8080


@contextmanager
def network_of_ones_own() -> Iterator[list[str]]:
    """What to put before a command so that it runs in a network in which port 8080 is free."""
    launcher = [sys.executable, "-m", "tests.support.guides.network"]
    argv = [*launcher, "new", "sh", "-c", "echo ready; exec sleep infinity"]
    holder = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with holder:
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() == "ready\n":
                yield ["env", f"PYTHONPATH={ROOT}", *launcher, str(holder.pid)]
            else:
                with _alone():
                    yield []
        finally:
            holder.kill()


@contextmanager
def _alone() -> Iterator[None]:
    """The machine's own port, to the exclusion of other readers; skips the test where a stranger has it."""
    with (Path(tempfile.gettempdir()) / "kernelwright-guides.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            socket.create_server(("127.0.0.1", _PORT)).close()
        except OSError:
            pytest.skip(f"port {_PORT} is in use, and no network of our own can be had here")
        yield


def _new() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        map_identity(uid, gid)
    if ctypes.CDLL(None).unshare(_CLONE_NEWNET) != 0:
        raise SystemExit("no network of our own can be had here")
    with socket.socket() as any_socket:
        request = struct.pack("16sh14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _join(pid: str) -> None:
    for kind in ("user", "net") if os.geteuid() != 0 else ("net",):
        with Path(f"/proc/{pid}/ns/{kind}").open() as namespace:
            if ctypes.CDLL(None).setns(namespace.fileno(), 0) != 0:
                raise SystemExit(f"cannot join the {kind} namespace of process {pid}")


if __name__ == "__main__":
    where, *command = sys.argv[1:]
    _new() if where == "new" else _join(where)
    os.execvp(command[0], command)
