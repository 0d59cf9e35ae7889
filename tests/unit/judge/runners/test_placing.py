"""OpenMP's workers are found among a process's threads by where they wait, and bound; nobody else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.judge.runners import placing, quiet

CORES = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")

PROGRAM = """
import threading, time, torch
torch.set_num_threads(2)
print((torch.ones(1 << 22) + 1).sum().item(), flush=True)
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def pid() -> Iterator[int]:
    """A process with a worker of torch's OpenMP and a thread of its own, all at rest."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
        yield process.pid
        process.kill()


def test_only_workers_are_bound_and_not_to_the_callers_core(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "runner_tree", lambda _warden: [pid])
    deadline = time.monotonic() + 20
    bound = placing.spread(0, CORES)
    while not bound and time.monotonic() < deadline:  # the worker looks for work before it sleeps
        time.sleep(0.01)
        bound = placing.spread(0, CORES)
    threads = {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}
    places = {thread: os.sched_getaffinity(thread) for thread in threads}
    workers = [thread for thread, cores in places.items() if cores != set(CORES)]
    assert len(workers) == bound == 1
    assert places[workers[0]] == {CORES[1]}
    assert places[pid] == set(CORES)
    assert len(threads) >= 3, "the thread of its own is left alone"


def test_one_core_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "runner_tree", lambda _warden: pytest.fail("nothing to spread over"))
    assert placing.spread(0, CORES[:1]) == 0


def test_the_judge_is_free_again_afterwards() -> None:
    with placing.beside_callers():
        assert os.sched_getaffinity(0) == {CORES[0]}
    assert os.sched_getaffinity(0) == set(CORES)
