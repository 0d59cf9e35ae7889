"""A child that is tied to its parent dies with it, however the parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ledger import PROBLEM

ROOT = Path(__file__).parents[3]
PARENT = """
import os, sys, time
from worker.lifeline import die_with_parent
parent = os.getpid()
child = os.fork()
if child == 0:
    if sys.argv[1] == "late":
        while os.getppid() == parent:
            time.sleep(0.01)
    die_with_parent(parent)
    if sys.argv[1] == "tied":
        os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
    os._exit(0)
if sys.argv[1] == "late":
    os.write(1, b"%d\\n" % child)
    os._exit(0)
time.sleep(60)
"""

PROPOSER = """
import json, os, subprocess, sys
command = [sys.executable, "-m", "worker.builtin", str(os.getpid())]
proposer = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
source = f"import pathlib, time\\npathlib.Path({sys.argv[1]!r}).touch()\\ntime.sleep(600)\\n" + sys.argv[2]
asked = {"problem_source": source, "problem_name": "x", "hardware": "cpu", "language": "cpp", "index": 0}
proposer.stdin.write(json.dumps(asked))
proposer.stdin.close()
print(proposer.pid, flush=True)
proposer.wait()
"""


def gone(pid: int, within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
@pytest.mark.parametrize("moment", ["tied", "late"])
def test_a_child_dies_with_its_parent(moment: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT, moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if moment == "tied":
            os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert gone(child)


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_built_in_proposer_stuck_in_a_reference_dies_with_its_worker(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    stuck = tmp_path / "stuck"
    command = [sys.executable, "-c", PROPOSER, str(stuck), PROBLEM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        proposer = int(parent.stdout.readline())
        deadline = time.monotonic() + 120
        while not stuck.exists():
            assert time.monotonic() < deadline and not gone(proposer, 0), "the proposer never ran the reference"
            time.sleep(0.05)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert gone(proposer)
