"""Who waits on a socket: real sockets, and a real process that has one of them or another."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from worker.judge.runners import bell_reader
from worker.judge.runners.bell_reader import peer_inode, waits_on


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of patience is for busy machines; a process that waits elsewhere does so for good."""
    monkeypatch.setattr(bell_reader, "_PATIENCE_S", 0.5)


@contextmanager
def waiting_on(theirs: socket.socket, first: str = "") -> Iterator[int]:
    """A process whose main thread waits for a byte from this socket, when it has done something `first`."""
    made = f"import socket, time; s = socket.socket(fileno={theirs.fileno()}); print(flush=True)"
    code = f"{made}\n{first}\ns.recv(1)"
    arguments = [sys.executable, "-c", code]
    with subprocess.Popen(arguments, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def peer(ours: socket.socket) -> int:
    found = peer_inode(ours)
    if found is None:
        pytest.skip("this kernel does not tell who is at the other end of a socket")
    return found


def test_the_other_end_of_a_pair_is_known() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer(ours) == os.fstat(theirs.fileno()).st_ino


def test_a_process_that_waits_on_the_bell_is_seen() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, waiting_on(theirs) as pid:
        assert waits_on(pid, peer(ours))


def test_a_process_that_runs_may_be_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_reader, "_PATIENCE_S", 0.0)
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        waiting_on(theirs, first="end = time.monotonic() + 1\nwhile time.monotonic() < end: pass") as pid,
    ):
        assert waits_on(pid, peer(ours))


def test_a_process_that_only_runs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_reader, "_AT_LAST_S", 0.5)
    ours, theirs = socket.socketpair()
    with ours, theirs, waiting_on(theirs, first="while True: pass") as pid:
        assert not waits_on(pid, peer(ours))


def test_a_process_that_waits_on_a_proxys_socket_is_told_apart() -> None:
    (ours, theirs), (inner, proxys) = socket.socketpair(), socket.socketpair()
    with ours, theirs, inner, proxys, waiting_on(proxys) as pid:
        assert not waits_on(pid, peer(ours))
