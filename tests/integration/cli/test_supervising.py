"""Supervisor and guard over real processes: restarts, orderly stops, and nothing left whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.people import ROOT, first_line, home_of, python, wait_for_none

RIG = str(ROOT / "tests/integration/cli/rig.py")


@pytest.fixture
def folder() -> Iterator[Path]:
    with home_of("self") as made:
        yield made


def started(folder: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """The rig's first process, and the pid of its supervisor."""
    rig = python("self", [RIG, str(folder), *options])
    return rig, int(first_line(rig, "watching").split()[1])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def child_of(folder: Path) -> int:
    return int((folder / "child.pid").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("options", [(), ("guarded",)])
def test_a_stop_signal_stops_everything_and_ends_well(
    folder: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    rig, _ = started(folder, *options)
    rig.send_signal(number)
    output, _ = rig.communicate(timeout=30)
    assert rig.returncode == 0, output
    assert "event=service.stopped service=child" in output
    assert wait_for_none(folder) == []


@pytest.mark.parametrize("victim", ["guard", "supervisor"])
def test_killing_either_leaves_no_process(folder: Path, victim: str) -> None:
    rig, supervisor = started(folder, "guarded")
    assert rig.pid != supervisor
    os.kill(rig.pid if victim == "guard" else supervisor, signal.SIGKILL)
    rig.communicate(timeout=30)
    assert rig.returncode == (-signal.SIGKILL if victim == "guard" else 128 + signal.SIGKILL)
    assert wait_for_none(folder) == []


def test_a_killed_child_is_started_again_and_its_orphans_are_ended(folder: Path) -> None:
    rig, _ = started(folder)
    first = child_of(folder)
    sleepers = {int(line.split()[0]) for line in wait_for_none(folder, wait_s=0) if "sleep" in line}
    assert sleepers
    os.kill(first, signal.SIGKILL)
    until(lambda: child_of(folder) != first)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in sleepers))
    rig.terminate()
    output, _ = rig.communicate(timeout=30)
    assert "event=service.ended service=child status=-9" in output
    assert "event=service.restarted service=child" in output


def test_a_second_signal_does_not_wait(folder: Path) -> None:
    """A child that ignores SIGTERM is killed by the second signal, well before its grace is over."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    rig = python("self", ["-c", _with_child(stubborn, grace_s=1000.0), str(folder)])
    first_line(rig, "watching")
    until((folder / "child.pid").exists)
    rig.terminate()
    first_line(rig, "asked")
    rig.terminate()
    rig.communicate(timeout=30)
    assert wait_for_none(folder) == []


def _with_child(prefix: str, grace_s: float) -> str:
    """The rig with another child and grace, and a line when the stop begins."""
    return (
        "import dataclasses, sys\n"
        "from tests.integration.cli import rig\n"
        f"rig.CHILD = {prefix!r} + rig.CHILD\n"
        "stop = rig.Program.ask_to_stop\n"
        "def ask(self):\n"
        f"    self.grace_s = {grace_s}\n"
        "    stop(self)\n"
        "    print('asked', flush=True)\n"
        "rig.Program.ask_to_stop = ask\n"
        "sys.exit(rig.supervise(rig.Path(sys.argv[1])))\n"
    )
