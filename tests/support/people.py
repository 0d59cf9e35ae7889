"""Run our Python as another user, and look for the processes that it leaves."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cli.spawn import Identity, launch_argv

ROOT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0
USERS = ["self", "ordinary"] if AS_ROOT else ["self"]
"""Who to run a test as: as root, the tests are run as an ordinary user too."""


@contextmanager
def home_of(user: str) -> Iterator[Path]:
    """A short, private folder that belongs to `user`; nothing runs in it any more when it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="kw-", dir="/tmp"))
    if user == "ordinary":
        account = pwd.getpwnam("nobody")
        os.chown(folder, account.pw_uid, account.pw_gid)
    try:
        yield folder
    finally:
        assert wait_for_none(folder) == []
        shutil.rmtree(folder)


def python(user: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start our Python as `user`, output piped and joined."""
    argv = [sys.executable, *arguments]
    if user == "ordinary":
        account = pwd.getpwnam("nobody")
        # Not a plain change of user: the interpreter may lie below root's closed home, and this way reaches it.
        identity = Identity("dropped", account.pw_uid, account.pw_gid)
        argv = launch_argv(argv, identity=identity, death_signal=signal.SIGKILL)
    settled = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    return subprocess.Popen(
        argv,
        env={**settled, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    )


def processes_in(folder: Path) -> list[str]:
    """The command lines of living processes that name `folder`, work in it, or have it in their environment."""
    mark = str(folder).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            traces = command + (entry / "environ").read_bytes() + os.fsencode((entry / "cwd").readlink())
            if command and mark in traces:
                found.append(f"{entry.name} {command.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


def wait_for_none(folder: Path, wait_s: float = 60.0) -> list[str]:
    """What still runs in `folder` after at most `wait_s`."""
    deadline = time.monotonic() + wait_s
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def first_line(process: subprocess.Popen[str], mark: str) -> str:
    """Read the process's output up to a line that contains `mark`; fails with what it said when none comes."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if mark in line:
            return line.strip()
    raise AssertionError(f"no line with {mark!r} in:\n{''.join(said)}")
