"""A child program as the supervisor sees it: start, watch, ask to stop, stop."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol

from cli.embedded.home import last_words, open_log
from cli.errors import CliError
from cli.spawn import spawn

_POLL_S = 0.05


class ProgramFailed(CliError):
    """{name} did not start: {reason} (whole log: {log})"""


class Service(Protocol):
    """Something that the supervisor keeps running: an embedded server or a program."""

    @property
    def name(self) -> str:
        """Short and unique: it names the log file too."""

    @property
    def pid(self) -> int | None:
        """Pid of the running process, None before the first start."""

    def start(self) -> None:
        """Start it and wait until it serves. Raises CliError when it does not."""

    def poll(self) -> int | None:
        """Exit status once it has ended, else None."""

    def ask_to_stop(self) -> None:
        """Begin an orderly stop and return at once."""

    def stop(self) -> None:
        """Wait for the orderly stop, then kill."""


@dataclass(slots=True)
class Program:
    """One of our own processes: the API server, a Celery worker, a one-shot step.

    `ready` is asked until it says yes (None: running is enough). `log` None: output goes where ours goes.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path | None = None
    ready: Callable[[], bool] | None = None
    ready_s: float = 60.0
    grace_s: float = 10.0
    pass_fds: Sequence[int] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _stop_by: float | None = field(default=None, init=False)

    @property
    def pid(self) -> int | None:
        """Pid of the running process, None before the first start."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it and wait until it is ready. Raises ProgramFailed, with its last words."""
        self._stop_by = None
        if self.log is None:
            self._process = self._spawn(None)
        else:
            with open_log(self.log) as output:
                self._process = self._spawn(output)
        self._wait_ready(self._process)

    def run_to_end(self) -> None:
        """Start it and wait for its end. Raises ProgramFailed unless it ends with 0."""
        self.start()
        assert self._process is not None
        status = self._process.wait()
        if status != 0:
            raise self._failed(f"it ended with status {status}")

    def poll(self) -> int | None:
        """Exit status once it has ended, else None."""
        return self._process.poll() if self._process is not None else None

    def ask_to_stop(self) -> None:
        """Send SIGTERM; `grace_s` runs from the first call."""
        if self._process is not None and self._process.poll() is None and self._stop_by is None:
            self._stop_by = time.monotonic() + self.grace_s
            self._process.terminate()

    def stop(self) -> None:
        """Wait for what is left of the grace, then SIGKILL."""
        self.ask_to_stop()
        if self._process is None:
            return
        try:
            self._process.wait(timeout=max(0.0, (self._stop_by or 0.0) - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _spawn(self, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        # SIGKILL and no softer signal: when the supervisor itself is gone, nobody is left to see a shutdown through.
        return spawn(
            self.argv,
            env=self.env,
            output=output,
            death_signal=signal.SIGKILL,
            pass_fds=self.pass_fds,
            cwd=self.cwd,
        )

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        if self.ready is None:
            return
        deadline = time.monotonic() + self.ready_s
        while not self.ready():
            if process.poll() is not None:
                raise self._failed(f"it ended with status {process.returncode}")
            if time.monotonic() > deadline:
                self.stop()
                raise self._failed(f"it was not ready after {self.ready_s:.0f} s")
            time.sleep(_POLL_S)

    def _failed(self, reason: str) -> ProgramFailed:
        if self.log is None:
            return ProgramFailed(name=self.name, reason=reason, log="above")
        return ProgramFailed(name=self.name, reason=f"{reason}; {last_words(self.log, lines=1)}", log=self.log)


@dataclass(frozen=True, slots=True)
class Step:
    """A program that ends by itself, as a member of a supervisor's groups: what follows starts after it."""

    program: Program

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def pid(self) -> int | None:
        """None: it has ended when anybody asks."""
        return None

    def start(self) -> None:
        """Run it to its end. Raises ProgramFailed unless it ends with 0."""
        self.program.run_to_end()

    def poll(self) -> int | None:
        """None: nothing to watch."""
        return None

    def ask_to_stop(self) -> None:
        """Stop it when it was interrupted half-way."""
        self.program.ask_to_stop()

    def stop(self) -> None:
        """Wait for that, then kill."""
        self.program.stop()


_NOBODYS: Final = frozenset({"KERNELWRIGHT_KEY", "KERNELWRIGHT_METRICS_TOKEN"})
"""What whoever starts us may have beside the keys of providers: who needs it is given it by name, in `extra`."""


def own_environment(extra: Mapping[str, str], *, secrets: bool) -> dict[str, str]:
    """Our environment for a child of ours, with `extra`. Without `secrets` the keys of model providers stay behind.

    Only the process that calls models needs them, and only what a process does not have cannot leak from it.
    """
    given = {name: value for name, value in os.environ.items() if name not in _NOBODYS}
    env = {name: value for name, value in given.items() if secrets or not _is_secret(name)}
    root = Path(__file__).parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        # Run from a checkout: children must find the same packages, wherever their working folder is.
        env["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [env.get("PYTHONPATH")])])
    env["PYTHONUNBUFFERED"] = "1"
    return {**env, **extra}


def _is_secret(name: str) -> bool:
    parts = name.upper().split("_")
    return any(word in parts for word in ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS"))
