"""The folders under $KERNELWRIGHT_HOME, and the lock that says whose server runs there.

postgres/  valkey/   the data           run/   sockets, locks, what is running           log/   one file per program
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from cli.embedded.errors import DiskFull, FolderBelongsToOther, FolderNotOurs, FolderUnusable, InUse

LONGEST_SOCKET_NAME = ".s.PGSQL.5432.lock"
SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket's path on Linux (sun_path, less the terminating zero)."""

_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
_DYING_SERVER_S = 10.0
_LOG_LIMIT_BYTES = 20_000_000


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or quota into DiskFull, and a path that may not be written into FolderUnusable."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path=path) from error
        if error.errno in _UNUSABLE:
            raise FolderUnusable(path=path, why=error.strerror) from error
        raise


def private_folder(path: Path) -> Path:
    """Make `path` (0700) or check that it is ours. Parents are made as needed and never changed.

    Raises FolderBelongsToOther, FolderNotOurs (not a folder), FolderUnusable or DiskFull.
    """
    with disk_errors(path):
        with suppress(FileExistsError):  # also when the parent is a file, of which the next line will complain
            path.parent.mkdir(parents=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise FolderNotOurs(path=path, what="folder")
    if found.st_uid != os.geteuid():
        raise FolderBelongsToOther(path=path, owner=found.st_uid, me=os.geteuid())
    return path


def resolve_home(home: Path) -> Path:
    """`home` as an absolute path, `~` included. Raises FolderUnusable for a user who has no home."""
    try:
        return home.expanduser().absolute()
    except RuntimeError as error:
        raise FolderUnusable(path=home, why="this user has no home folder") from error


def open_home(home: Path) -> Path:
    """Make or check `home` itself; its mode is left alone when it exists."""
    return private_folder(resolve_home(home))


def log_folder(home: Path) -> Path:
    """`home`/log, made when missing."""
    return private_folder(open_home(home) / "log")


def run_folder(home: Path) -> Path:
    """`home`/run, made when missing."""
    return private_folder(open_home(home) / "run")


def socket_folder(home: Path) -> Path:
    """A folder (0700, ours) short and plain enough for sockets and for connection strings.

    `home`/run where it fits; else a folder in the system's temporary one, named after `home` so that it is found again.
    """
    run = run_folder(home)
    if _fits(run):
        run.chmod(0o700)
        return run
    digest = hashlib.sha256(os.fsencode(run)).hexdigest()[:12]
    for base in (Path(tempfile.gettempdir()), Path("/tmp")):
        candidate = base / f"kernelwright-{os.geteuid()}-{digest}"
        if _fits(candidate):
            private_folder(candidate).chmod(0o700)
            return candidate
    raise FolderNotOurs(path=run, what="folder with a path short enough for a socket")


def _fits(folder: Path) -> bool:
    # A connection string would need quoting for other characters, and three libraries quote them differently.
    return (
        len(os.fsencode(folder / LONGEST_SOCKET_NAME)) <= SOCKET_PATH_LIMIT
        and _PLAIN_PATH.fullmatch(str(folder)) is not None
    )


class ServerLock:
    """A lock held by every process of one server, and by nobody else.

    The locked descriptor is handed to the server and closed here, so the lock is free exactly when the last process of
    that server is gone: also after a kill -9 of whoever started it.
    """

    def __init__(self, home: Path, server: str) -> None:
        self.path = run_folder(home) / f"{server.lower()}.lock"
        self._server = server
        self._home = home

    def take(self) -> int:
        """A locked, inheritable descriptor; waits for a dying server. Raises InUse when it is another's."""
        with disk_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _DYING_SERVER_S
        try:
            while not try_lock(descriptor):
                owner = self._owner()
                others = owner is not None and owner != os.getpid() and process_alive(owner)
                if others or time.monotonic() > deadline:
                    raise InUse(server=self._server, path=self._home, pid=owner or "unknown")
                time.sleep(0.02)
            with disk_errors(self.path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _owner(self) -> int | None:
        try:
            return int(self.path.read_text())
        except (OSError, ValueError):
            return None


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def process_alive(pid: int) -> bool:
    """Whether `pid` still runs; a killed process that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    except OSError:
        return True  # no /proc here: the signal got through, so it exists
    return state not in ("Z", "X")


@contextmanager
def open_log(log: Path) -> Iterator[IO[bytes]]:
    """The log of a program that is about to start, to append to; one old log is kept once it has passed 20 MB."""
    with disk_errors(log):
        if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))
        with log.open("ab") as file:
            yield file


def last_words(log: Path, lines: int = 3) -> str:
    """The last `lines` of a log in one line, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "no log was written"
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(kept[-lines:]) or "it said nothing"
