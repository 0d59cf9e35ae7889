"""Traps that are processes: one with secrets that reports signals, another's runner, and what must not live on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hostile.traps import token
from worker.judge.runners import quiet
from worker.judge.runners.sessions import LOG_BYTES
from worker.judge.verdict import Fault

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_VICTIM = """
import ctypes, os, signal, sys, tempfile
def tell(number, _frame):
    print("signal", number, flush=True)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, tell)
secret = os.environ["SECRET"]
held = ctypes.create_string_buffer(secret.encode())
file = tempfile.TemporaryFile()
file.write(secret.encode())
file.flush()
print(ctypes.addressof(held), file.fileno(), flush=True)
for _question in sys.stdin:
    print("alive", flush=True)
"""
_PATIENCE_S = 10.0


class Victim:
    """A process of the worker's own user with a secret in its environment, its memory and an unlinked file."""

    def __init__(self, _ground: Ground) -> None:
        self._secret = token()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _VICTIM],
            env={"SECRET": self._secret}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        address, descriptor = self._process.stdout.readline().split()
        self._before = self._state()
        pid = self._process.pid
        self.targets: dict[str, str | int] = {"pid": pid, "address": int(address), "descriptor": int(descriptor),
                                              "length": len(self._secret)}  # fmt: skip

    def _state(self) -> tuple[object, ...]:
        pid = self._process.pid
        return (
            os.sched_getaffinity(pid),
            os.getpriority(os.PRIO_PROCESS, pid),
            resource.prlimit(pid, resource.RLIMIT_NOFILE),
            Path(f"/proc/{pid}/oom_score_adj").read_text(),
        )

    def seen(self, log: str) -> str:
        if self._secret in log:
            return "the secret was printed"
        return self._suffered() or ("its settings were changed" if self._state() != self._before else "")

    def _suffered(self) -> str:
        """What became of it, "" if nothing. It is asked for an answer, since a signal takes its time: killed a moment
        ago, a process may still look alive, but whatever was sent before the question comes before the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("?\n")
            self._process.stdin.flush()
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                return "the process was killed"
            if Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "tT":
                return "the process was stopped"
            if select.select([self._process.stdout], [], [], 0.01)[0]:
                printed = os.read(self._process.stdout.fileno(), 100)
                if b"signal" in printed:
                    return "a signal arrived"
                if b"alive" in printed:
                    return ""
        return "the process does not answer"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()


_OTHER = """
import os, subprocess, threading, time
SECRET = {secret!r}
open("secret", "w").write(SECRET)
os.environ["SECRET"] = SECRET
from torch import nn
class ModelNew(nn.Module):
    pass
"""
_STILL_WORKS = """
import subprocess, threading, tempfile
for _each in range(4):
    subprocess.run(["/bin/true"], check=True)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
from torch import nn
class ModelNew(nn.Module):
    pass
"""


class OtherCandidate:
    """Another candidate in a runner of its own, at the same level, with a secret; it must still work afterwards."""

    def __init__(self, ground: Ground) -> None:
        self._secret = token()
        self._runner = ground.runner()
        self._load(_OTHER.format(secret=self._secret))
        self.targets: dict[str, str | int] = {"pids": " ".join(map(str, quiet.runner_tree(self._runner._pid)))}

    def _load(self, source: str) -> None:
        message = {"op": "load", "subject": token(), "source": source, "class": "ModelNew", "compile": None}
        self._runner.ask(message, 60)

    def seen(self, log: str) -> str:
        if self._secret in log:
            return "the other's secret was printed"
        try:
            self._load(_STILL_WORKS)
        except Fault as fault:
            return f"the other candidate suffered: {fault.reason[:100]}"
        return ""

    def close(self) -> None:
        self._runner.close()


class Bystander(OtherCandidate):
    """The same, looked at while the attempt still goes on: it must be able to work beside it."""

    during = True


class Survivor:
    """A process of the candidate's that lives on after its runner has been closed. It carries the token as argument."""

    def __init__(self, _ground: Ground) -> None:
        self._token = token()
        self.targets: dict[str, str | int] = {"token": self._token}

    def seen(self, _log: str) -> str:
        deadline = time.monotonic() + 1.0  # one that was told to end may still be on its way
        while list(self._alive()):
            if time.monotonic() > deadline:
                return "a process lives on"
            time.sleep(0.02)
        return ""

    def _alive(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                if self._token.encode() in (entry / "cmdline").read_bytes() and pid != os.getpid():
                    yield pid

    def close(self) -> None:
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Parents:
    """The processes above the candidate: judge (this one), zygote, warden. None must be stopped or die."""

    def __init__(self, ground: Ground) -> None:
        self._zygote = ground.zygote_pid
        self.targets: dict[str, str | int] = {"zygote": self._zygote}

    def seen(self, _log: str) -> str:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self._zygote}/stat").read_text().rsplit(")", 1)[1].split()[0]
            return "the zygote was stopped" if state in "tT" else "the zygote died" if state in "ZX" else ""
        return "the zygote died"

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._zygote, signal.SIGCONT)


class Log:
    """What is kept of a candidate's output must stay small."""

    def __init__(self, _ground: Ground) -> None:
        self.targets: dict[str, str | int] = {}

    def seen(self, log: str) -> str:
        return f"{len(log)} characters were kept" if len(log) > LOG_BYTES else ""

    def close(self) -> None:
        """Nothing was made."""


class SharedMemory:
    """How much memory of files without a disk (memfd, tmpfs, System V) the machine holds for the attempt."""

    during = True
    LIMIT_BYTES = 1 << 30
    """Four times the scratch that the ground gives."""

    def __init__(self, _ground: Ground) -> None:
        self._before = self._held()
        self._token = token()
        self.targets: dict[str, str | int] = {"bytes": self.LIMIT_BYTES + (512 << 20), "token": self._token}

    def _held(self) -> int:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["Shmem"].split()[0]) << 10

    def seen(self, _log: str) -> str:
        grown = self._held() - self._before
        return f"the machine held {grown >> 20} MiB for it" if grown > self.LIMIT_BYTES else ""

    def close(self) -> None:
        """What has no name goes with the process."""
        for path in Path("/dev/shm").glob(f"{self._token}-*"):
            path.unlink()


class SysVSegment:
    """A System V segment of the host's, readable for all, with a secret in it."""

    def __init__(self, _ground: Ground) -> None:
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        self._libc, self._secret = libc, token()
        key = int.from_bytes(os.urandom(3), "big") + 1
        self._id = libc.shmget(key, 4096, 0o1666)
        address = libc.shmat(self._id, None, 0)
        ctypes.memmove(address, self._secret.encode(), len(self._secret))
        libc.shmdt(ctypes.c_void_p(address))
        self.targets: dict[str, str | int] = {"key": key, "length": len(self._secret)}

    def seen(self, log: str) -> str:
        return "the secret was printed" if self._secret in log else ""

    def close(self) -> None:
        self._libc.shmctl(self._id, 0, None)
