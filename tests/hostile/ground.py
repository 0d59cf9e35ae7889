"""The ground of the attempts: runners of one sandbox level, as the judge starts them but with tight limits; or none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from tests.hostile.attempt import Attempt, Outcome, Trap
from tests.hostile.traps import token
from worker.judge.runners.builder import make_builder
from worker.judge.runners.sessions import Runner, Zygote, runner_environment, zygote_environment
from worker.judge.verdict import Fault
from worker.languages.cache import BuildCache
from worker.runner import sandbox

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 12.0
_PLAIN_LIMIT_S = 120.0
"""Unconfined attempts have to come to their end: 110,000 files take 6 to 14 s on a disk, more on a busy machine."""
_LIMITS = sandbox.Limits(memory_bytes=2 << 30, scratch_bytes=256 << 20, processes=256, wall_s=60.0)

PRELUDE = """
import ctypes, json, os, socket, subprocess, sys
T = json.loads({targets!r})
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    # As longs: of an int on the stack, which is where the sixth argument goes, the upper half is whatever was there.
    return libc.syscall(number, *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
def told():
    print(T["token"], flush=True)
def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""
"""
_MODEL = """
from torch import nn
class ModelNew(nn.Module):
    pass
"""
_SHIM = """
import sys
from worker.runner import kernelwright
sys.modules["kernelwright"] = kernelwright
"""


class Ground:
    """Runners of one level. `level` "none" runs attempts as plain processes of this user."""

    def __init__(self, level: str, home: Path) -> None:
        self.level, self.home = level, home
        self.canary = token()
        """A secret in the environment of the judge (this process)."""
        os.environ["KERNELWRIGHT_CANARY"] = self.canary
        confined = level if level != "none" else None
        self._zygote = Zygote(zygote_environment(_ROOT, os.cpu_count() or 1), confined or "process")
        self.builds = BuildCache(home / "builds", level=confined, timeout_s=10, memory_bytes=2 << 30)
        self._builder = make_builder(self.builds, on_gpu=False)

    def __enter__(self) -> Ground:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zygote.close()
        os.environ.pop("KERNELWRIGHT_CANARY", None)

    @property
    def zygote_pid(self) -> int:
        """The process that forks the runners."""
        return self._zygote._process.pid

    def runner(self) -> Runner:
        """A runner as a candidate gets it."""
        level = "process" if self.level == "none" else self.level
        confinement = sandbox.Confinement(level=level, limits=_LIMITS, readable=sandbox.python_folders())
        runner = self._zygote.spawn(confinement, runner_environment(1, gpu=False))
        runner.build = self._builder
        return runner

    def attempt(self, attempt: Attempt) -> Outcome:
        """Run one attempt to its end and look at its trap."""
        with _set(attempt.trap(self)) as trap:
            source = PRELUDE.format(targets=json.dumps(dict(trap.targets))) + attempt.source
            ended, log, seen = self._plain(source, trap) if self.level == "none" else self._confined(source, trap)
            return Outcome(attempt, self.level, seen, ended, log)

    def _confined(self, source: str, trap: Trap) -> tuple[str, str, str]:
        runner = self.runner()
        seen = ""
        try:
            ended = _loaded(runner, source + _MODEL)
            if getattr(trap, "during", False):
                seen = trap.seen(runner.log())
        finally:
            runner.close()
        return ended, runner.log(), seen or trap.seen(runner.log())

    def _plain(self, source: str, trap: Trap) -> tuple[str, str, str]:
        with tempfile.TemporaryDirectory(prefix="hostile-plain-") as scratch:
            command = [sys.executable, "-c", _SHIM + source + "\nprint('hostile-ready', flush=True); sys.stdin.read()"]
            environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), "HOME": scratch,
                           "KERNELWRIGHT_CANARY": self.canary}  # fmt: skip
            process = subprocess.Popen(
                command, cwd=scratch, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True, text=True, errors="replace",
            )  # fmt: skip
            assert process.stdout is not None
            alarm = threading.Timer(_PLAIN_LIMIT_S, _end, (process,))
            alarm.start()
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if "hostile-ready" in line:
                    break
            seen = trap.seen("".join(lines)) if getattr(trap, "during", False) else ""
            alarm.cancel()
            _end(process)
            process.stdin.close() if process.stdin else None
            process.stdout.close()
            process.wait()
            log = "".join(lines)
            return "ran", log, seen or trap.seen(log)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _loaded(runner: Runner, source: str) -> str:
    message = {"op": "load", "subject": "hostile", "source": source, "class": "ModelNew", "compile": None}
    try:
        runner.ask({"op": "settings", "advance": False}, 30)
        runner.ask(message, _LIMIT_S)
    except Fault as fault:
        return f"{fault.verdict}: {fault.reason[:200]}"
    return "loaded"


@contextlib.contextmanager
def _set(trap: Trap) -> Iterator[Trap]:
    try:
        yield trap
    finally:
        trap.close()
