"""A stopped process tree is still, and one that goes on by itself is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker.judge.runners import quiet
from worker.judge.runners.freezing import Freezer

_FAMILY = """
import subprocess, sys
# The warden; its child, the sandbox's first process; and that one's, the runner.
first = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
subprocess.run([sys.executable, "-c", first, sys.argv[1]])
"""
_READY = "print('ready', flush=True)\n"

BUSY = f"""
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20))  # without Python's lock
for _thread in range(3):
    threading.Thread(target=work, daemon=True).start()
{_READY}
work()
"""
BY_TIMER = f"""
import ctypes, signal, struct
libc = ctypes.CDLL(None)
timer, event = ctypes.c_void_p(), struct.pack("Qii48x", 0, signal.SIGCONT, 0)
assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
soon = struct.pack("4q", 0, 0, 0, 20_000_000)
{_READY}
while True:
    libc.timer_settime(timer, 0, soon, None)  # later and later, until it is stopped: 20 ms after that it goes on
"""
BY_CHILD = f"""
import os, signal
parent = os.getpid()
if os.fork() == 0:
    while True:
        os.kill(parent, signal.SIGCONT)
{_READY}
while True:
    pass
"""
FORKING = f"""
import os
{_READY}
while True:
    if os.fork() == 0:
        os._exit(0)
    os.wait()
"""

Family = Callable[[str], int]
"""Starts a runner of this source; the process id of its warden."""


@pytest.fixture
def family() -> Iterator[Family]:
    started: list[subprocess.Popen[str]] = []

    def start(source: str) -> int:
        command = [sys.executable, "-c", _FAMILY, source]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _stop(freezer: Freezer, warden: int, seconds: float) -> float:
    """Stop for so long; the processor time used between, by the kernel's count of each thread."""
    freezer.freeze()
    tree = quiet.runner_tree(warden)
    before_s = sum(quiet.ran_s(pid) for pid in tree)
    time.sleep(seconds)
    used_s = sum(quiet.ran_s(pid) for pid in tree) - before_s
    freezer.thaw()
    return used_s


def test_an_honest_busy_process_is_still_in_every_stop(family: Family) -> None:
    warden = family(BUSY)
    freezer = Freezer(warden)
    for _turn in range(200):
        _stop(freezer, warden, 1e-3)
        time.sleep(1e-3)
    told = freezer.stillness
    assert (told.stops, told.broken) == (200, 0), told
    assert told.used_s < 0.02, told


@pytest.mark.parametrize(("late", "broken"), [(0, 1), (1, 0)])
def test_what_was_used_before_and_is_counted_late_breaks_no_stop(
    family: Family, monkeypatch: pytest.MonkeyPatch, late: int, broken: int
) -> None:
    freezer = Freezer(family(BUSY))
    monkeypatch.setattr(quiet, "threads_on_their_way", lambda _pid: late)
    freezer.freeze()
    counted = quiet.processor_ns
    monkeypatch.setattr(quiet, "processor_ns", lambda pid: counted(pid) + 2_000_000)
    freezer.thaw()
    assert freezer.stillness.broken == broken, freezer.stillness


def test_all_are_stopped_when_freezing_ends_and_go_on_when_thawing_does(family: Family) -> None:
    warden = family(BUSY)
    freezer = Freezer(warden)
    freezer.freeze()
    tree = quiet.runner_tree(warden)
    assert tree and all(quiet.stopped(pid) for pid in tree)
    ran = {pid: quiet.processor_ns(pid) for pid in tree}
    time.sleep(0.1)
    assert all(quiet.processor_ns(pid) - ran[pid] < 2e7 for pid in tree)  # of 1e8 a core; a tick may come late
    freezer.thaw()
    until = time.monotonic() + 20
    while quiet.processor_ns(tree[0]) - ran[tree[0]] < 1e7 and time.monotonic() < until:
        time.sleep(0.01)
    assert quiet.processor_ns(tree[0]) - ran[tree[0]] > 1e7


def test_one_that_a_timer_continues_is_told(family: Family) -> None:
    warden = family(BY_TIMER)
    freezer = Freezer(warden)
    used_s = []
    for _turn in range(10):
        used_s.append(_stop(freezer, warden, 0.1))
        time.sleep(0.03)  # to set its timer again
    assert freezer.stillness.stops == 10
    assert freezer.stillness.broken >= 5, (freezer.stillness, used_s)
    assert freezer.stillness.used_s >= 0.5 * sum(used_s)


def test_a_child_that_continues_its_parent_is_stopped_with_it(family: Family) -> None:
    warden = family(BY_CHILD)
    freezer = Freezer(warden)
    used_s = [_stop(freezer, warden, 0.01) for _turn in range(30)]
    assert len(quiet.runner_tree(warden)) == 2
    assert freezer.stillness.broken == 0, (freezer.stillness, used_s)


def test_a_process_that_forks_all_the_time_is_stopped_with_its_children(family: Family) -> None:
    warden = family(FORKING)
    freezer = Freezer(warden)
    for _turn in range(30):
        _stop(freezer, warden, 2e-3)
    assert freezer.stillness.broken == 0, freezer.stillness


def test_a_tree_that_is_gone_can_be_stopped_and_thawed() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    freezer = Freezer(gone.pid)
    freezer.freeze()
    freezer.thaw()
    assert (freezer.stillness.stops, freezer.stillness.broken) == (1, 0)


def test_a_second_stop_and_a_second_thaw_do_nothing(family: Family) -> None:
    warden = family(BUSY)
    freezer = Freezer(warden)
    freezer.freeze()
    freezer.freeze()
    freezer.thaw()
    freezer.thaw()
    assert freezer.stillness.stops == 1


def test_processor_time_is_that_of_all_threads_and_of_those_that_have_ended() -> None:
    source = (
        "import threading, time\nend = time.monotonic() + 0.3\ndef spin():\n    while time.monotonic() < end: pass\n"
    )
    source += "thread = threading.Thread(target=spin)\nthread.start()\nthread.join()\nprint(1, flush=True)\ninput()"
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    assert quiet.processor_ns(process.pid) / 1e9 > quiet.ran_s(process.pid) + 0.05
    assert not quiet.stopped(process.pid)
    process.communicate("\n")
    assert quiet.processor_ns(process.pid) == 0
    assert quiet.stopped(process.pid) and not Path(f"/proc/{process.pid}").exists()
