"""Start child programs through `cli/launch.py`, so that none of them outlives the process that started it.

The kernel's parent-death signal follows the *thread* that forked: start children from a thread that lives as long as
they should, in practice the main thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

_LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, slots=True)
class Identity:
    """Under which user a child runs; `kind` is explained in `cli/launch.py`."""

    kind: Literal["self", "mapped", "dropped"] = "self"
    uid: int = 65534
    gid: int = 65534

    @property
    def file_owner(self) -> int:
        """The user id that files made by the child belong to, seen from here."""
        return self.uid if self.kind == "dropped" else os.geteuid()


def launch_argv(program: Sequence[str], *, identity: Identity, death_signal: signal.Signals) -> list[str]:
    """The command line that becomes `program` with its life tied to the calling process."""
    ids = ["--identity", identity.kind, "--uid", str(identity.uid), "--gid", str(identity.gid)]
    tie = ["--parent", str(os.getpid()), "--death-signal", str(int(death_signal))]
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *tie, *ids, "--", *program]


def spawn(
    program: Sequence[str],
    *,
    env: Mapping[str, str],
    output: IO[bytes] | int | None,
    identity: Identity | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    pass_fds: Sequence[int] = (),
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `program` in its own session, its output to `output` (None: inherited); the pid is the program's own.

    Its own session keeps a terminal's Ctrl-C away from it: whoever started it decides the order in which things stop.
    """
    argv = launch_argv(program, identity=identity or Identity(), death_signal=death_signal)
    return subprocess.Popen(
        argv,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        pass_fds=tuple(pass_fds),
        cwd=cwd,
        start_new_session=True,
    )


def run(
    program: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    identity: Identity | None = None,
    stdin: str = "",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `program` to its end and capture its output (stderr joined in). Raises subprocess.TimeoutExpired."""
    argv = launch_argv(program, identity=identity or Identity(), death_signal=signal.SIGKILL)
    return subprocess.run(
        argv,
        env=dict(env),
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        cwd=cwd,
        start_new_session=True,
        check=False,
    )


def stop(process: subprocess.Popen[bytes], ladder: Sequence[tuple[signal.Signals, float]]) -> int:
    """Send each signal of `ladder` and wait its seconds for the end, then SIGKILL. Returns the exit status."""
    for number, wait_s in ladder:
        if process.poll() is not None:
            break
        process.send_signal(number)
        try:
            return process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.kill()
    return process.wait()
