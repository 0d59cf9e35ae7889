"""A child that is tied to its parent dies with it, however the parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


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
