"""The service as a user runs it (`kernelwright up`), with all its processes in reach of a kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cli.client import Client, ClientError
from cli.preflight import listen

ROOT = Path(__file__).resolve().parents[2]
START_S = 180.0
STOP_S = 60.0

_ROLES = (
    ("celery", "--queues"),
    ("postgres", None),
    ("valkey-server", None),
    ("cli.serve", None),
    ("worker.judge", None),
    ("worker.runner", None),
    ("worker.builtin", None),
    ("cli", "up"),
)
"""By which a process is recognised: a word of its command line and, for ours, an argument. `up`: guard, supervisor."""


class DidNotStart(RuntimeError):
    """`kernelwright up` did not answer in time. Its log is in the home's log/up.log."""

    def __str__(self) -> str:
        return str(self.__doc__)


class Service:
    """`kernelwright up` in a home of its own. `start` it again after every kill; the data are in the home."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.url = ""
        self._environment = {name: v for name, v in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
        self._environment |= {**environment, "PYTHONPATH": str(ROOT)}
        self._up: subprocess.Popen[bytes] | None = None
        with listen("127.0.0.1", 0) as listener:
            self._port = listener.getsockname()[1]

    @property
    def running(self) -> bool:
        """Whether the process that a user started is there."""
        return self._up is not None and self._up.poll() is None

    def start(self) -> None:
        """Wait until nothing of it is left, start it, and wait until its API answers. Raises DidNotStart.

        When only the process that a user started was killed, the supervisor below it needs a moment to stop the rest.
        """
        gone_by = time.monotonic() + STOP_S
        while self.processes() and time.monotonic() < gone_by:
            time.sleep(0.1)
        (self.home / "log").mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "cli", "up", "--home", str(self.home), "--queues", "control,llm,cpu"]
        with (self.home / "log" / "up.log").open("ab") as log:
            self._up = subprocess.Popen(
                [*argv, "--port", str(self._port)], env=self._environment, stdout=log, stderr=log, cwd=self.home
            )
        self.url = f"http://127.0.0.1:{self._port}"
        deadline = time.monotonic() + START_S
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                raise DidNotStart
            time.sleep(0.2)

    def _answers(self) -> bool:
        with suppress(ClientError), Client(self.url) as client:
            client.workers()
            return True
        return False

    def stop(self) -> list[str]:
        """Ask it to stop, wait, and name the processes that it left behind (there should be none)."""
        if self._up is not None and self.running:
            self._up.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._up.wait(STOP_S)
        return sorted(self.processes().values())

    def processes(self) -> dict[int, str]:
        """Every living process of the service by its role: those below ours and those that work in the home."""
        below = self._below()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid = int(entry.name)
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command and (pid in below or self._works_here(entry)):
                    found[pid] = _role(command)
        return found

    def _works_here(self, entry: Path) -> bool:
        mark = os.fsencode(f"KERNELWRIGHT_HOME={self.home}")
        return (entry / "cwd").readlink().is_relative_to(self.home) or mark in (entry / "environ").read_bytes()

    def _below(self) -> set[int]:
        """The pids of everything below the process that a user started, itself included."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        below = {self._up.pid} if self._up is not None else set()
        while more := {pid for pid, parent in parents.items() if parent in below} - below:
            below |= more
        return below

    def kill_everything(self, dice: random.Random) -> Counter[str]:
        """SIGKILL for every process, in any order, until none is left; how many of which role."""
        killed: Counter[str] = Counter()
        while found := self.processes():
            for pid in dice.sample(sorted(found), len(found)):
                killed[found[pid]] += _kill(pid)
            time.sleep(0.05)
            self.running  # noqa: B018 - reaps it
        return killed

    def kill_one(self, dice: random.Random) -> Counter[str]:
        """SIGKILL for one process of a role that is taken at random; its role. Empty when it ended by itself before."""
        found = self.processes()
        role = dice.choice(sorted(set(found.values())))
        pid = dice.choice(sorted(pid for pid, name in found.items() if name == role))
        return Counter({role: 1} if _kill(pid) else {})


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _role(command: str) -> str:
    words = command.split()
    for name, option in _ROLES:
        if not any(name in word for word in words):
            continue
        if option == "--queues" and option in words:
            return f"worker {words[words.index(option) + 1]}"
        if option is None or option in words:
            return option or name.rpartition(".")[2]
    return "other"


def models_file(home: Path, api_base: str) -> Path:
    """A file that points every model at the provider, with a price of 0.20 USD for an answer."""
    options = {"api_base": api_base, "api_key": "sk-none", "usd_per_mtok_in": "100", "usd_per_mtok_out": "200"}
    home.mkdir(parents=True, exist_ok=True)
    path = home / "models.json"
    path.write_text(json.dumps({"*": options}))
    return path
