"""Which `kernelwright up` runs in a home: one lock file that also says its pid and URL."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.embedded.home import disk_errors, process_alive, run_folder, try_lock
from cli.errors import CliError

_DYING_S = 20.0


class AlreadyRunning(CliError):
    """{home} is in use by a running Kernelwright: process {pid}, {url}. Use that one, stop it with `kill {pid}`, or
    start another with a --home and a --port of its own."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What is running; `url` is None until the API answers."""

    pid: int
    home: str
    url: str | None


class InstanceLock:
    """Held by a running `up` for its whole life, by its guard and its supervisor alike.

    The kernel frees it with the last of the two, so a kill -9 leaves nothing to clean up.
    """

    def __init__(self, home: Path) -> None:
        self.path = run_folder(home) / "up.lock"
        self._home = home
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raises AlreadyRunning; waits for one whose process is dead and whose children are still going."""
        with disk_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _DYING_S
        while not try_lock(descriptor):
            running = read_instance(self._home)
            if time.monotonic() > deadline or (running is not None and process_alive(running.pid)):
                os.close(descriptor)
                url = running.url if running is not None and running.url else "still starting"
                raise AlreadyRunning(home=self._home, pid=running.pid if running else "unknown", url=url)
            time.sleep(0.05)
        self._descriptor = descriptor
        self.announce(Instance(pid=os.getpid(), home=str(self._home), url=None))

    def announce(self, instance: Instance) -> None:
        """Write down who is running, for the next `up` and for whoever looks for the URL."""
        assert self._descriptor is not None
        text = json.dumps(asdict(instance)).encode()
        with disk_errors(self.path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)


def read_instance(home: Path) -> Instance | None:
    """What the last `up` in this home wrote down, running or not."""
    try:
        return Instance(**json.loads((home / "run" / "up.lock").read_text()))
    except (OSError, ValueError, TypeError):
        return None
