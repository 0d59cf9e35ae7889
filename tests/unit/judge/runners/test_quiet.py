"""A process that had to wait for a core is told from one that had not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from worker.judge.runners import quiet

_SPIN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


def test_a_process_that_shares_its_core_waits() -> None:
    core = min(os.sched_getaffinity(0))
    spin = ["taskset", "-c", str(core), sys.executable, "-c", _SPIN.format(seconds=1.5)]
    first, second = subprocess.Popen(spin), subprocess.Popen(spin)
    time.sleep(1.2)
    waited = quiet.waited_s(first.pid) + quiet.waited_s(second.pid)
    assert first.wait() == second.wait() == 0
    assert waited > 0.2


def test_a_process_that_sleeps_waits_for_nothing() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    until = time.monotonic() + 20
    while "(sleep) S" not in Path(f"/proc/{sleeper.pid}/stat").read_text() and time.monotonic() < until:
        time.sleep(0.01)
    before = quiet.waited_s(sleeper.pid)
    time.sleep(0.2)
    assert quiet.waited_s(sleeper.pid) - before < 0.01
    sleeper.kill()
    sleeper.wait()


def test_a_process_that_is_gone_has_waited_for_nothing_and_has_no_runner() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert quiet.waited_s(gone.pid) == 0.0
    assert quiet.runner_of(gone.pid) is None
