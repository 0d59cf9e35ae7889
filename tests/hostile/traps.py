"""Traps: listeners, planted secrets, files that must not appear. Each tells a success from outside the sandbox."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.hostile.ground import Ground


def token() -> str:
    """What no process prints by chance."""
    return f"kw-{secrets.token_hex(12)}"


class Told:
    """The candidate says itself whether a call gave it what it asked for: it has no reason to hide a success."""

    def __init__(self, _ground: Ground, **targets: str | int) -> None:
        self._token = token()
        self.targets: dict[str, str | int] = {"token": self._token, **targets}

    def seen(self, log: str) -> str:
        return "the call succeeded" if self._token in log else ""

    def close(self) -> None:
        """Nothing was made."""


class Listener:
    """A socket of ours that nobody else connects to or sends to."""

    def __init__(self, _ground: Ground, family: int, kind: int, address: str = "127.0.0.1", folder: str = "") -> None:
        self._folder: str | None = None
        self._socket = socket.socket(family, kind)
        if family != socket.AF_UNIX:
            self._socket.bind((address, 0))
        elif folder:
            self._folder = tempfile.mkdtemp(prefix="hostile-")
            Path(self._folder).chmod(0o755)
            self._socket.bind(f"{self._folder}/{folder}")
            Path(f"{self._folder}/{folder}").chmod(0o777)
        else:
            self._socket.bind("\0" + token())
        if kind == socket.SOCK_STREAM:
            self._socket.listen(4)
        self._socket.setblocking(False)
        self._stream = kind == socket.SOCK_STREAM
        name = self._socket.getsockname()
        where = name if family == socket.AF_UNIX else name[0]
        self.targets: dict[str, str | int] = {
            "address": where.decode().replace("\0", "@") if isinstance(where, bytes) else where,
            "port": 0 if family == socket.AF_UNIX else name[1],
        }

    def seen(self, _log: str) -> str:
        with contextlib.suppress(BlockingIOError):
            if self._stream:
                self._socket.accept()[0].close()
                return "a connection arrived"
            self._socket.recv(100)
            return "a datagram arrived"
        return ""

    def close(self) -> None:
        self._socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder)


class Secret:
    """A file that holds a secret. `mode`: of the file; `folder`: where, or a folder of its own of mode `around`."""

    def __init__(
        self, _ground: Ground, mode: int = 0o644, folder: Path | None = None, around: int = 0o755, name: str = "secret"
    ) -> None:
        self._secret = token()
        self._made = None if folder is not None else Path(tempfile.mkdtemp(prefix="hostile-"))
        where = folder or self._made
        assert where is not None, "one of the two was given"
        where.mkdir(parents=True, exist_ok=True)
        self._path = where / (name if folder is None else f"{name}-{token()}")
        self._path.write_text(f"{self._secret}\n")
        self._path.chmod(mode)
        if self._made is not None:
            self._made.chmod(around)
        self.targets: dict[str, str | int] = {"path": str(self._path), "folder": str(where)}

    def seen(self, log: str) -> str:
        if not self._path.exists() or self._path.read_text() != f"{self._secret}\n":
            return "the file was changed"
        return "the secret was printed" if self._secret in log else ""

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)


class Planted:
    """A path where nothing must appear."""

    def __init__(self, _ground: Ground, folder: Path, mode: int | None = None, user: int | None = None) -> None:
        """`mode` and `user`: the folder is made for this, with that mode and owner, and removed."""
        self._made = mode is not None
        if mode is not None:
            folder = folder / token()
            folder.mkdir(parents=True)
            folder.chmod(mode)
        if user is not None and os.geteuid() == 0:
            os.chown(folder, user, user)
        self._folder, self._path = folder, folder / f"escape-{token()}"
        self.targets: dict[str, str | int] = {"path": str(self._path), "folder": str(folder)}

    def seen(self, _log: str) -> str:
        return "the file appeared" if os.path.lexists(self._path) else ""

    def close(self) -> None:
        for path in (self._path, *((self._folder,) if self._made else ())):
            with contextlib.suppress(FileNotFoundError):
                if path.is_dir() and not path.is_symlink():
                    # A control group is removed by rmdir alone: its files are the kernel's.
                    path.rmdir() if str(path).startswith("/sys") else shutil.rmtree(path)
                else:
                    path.unlink()
