"""Runs the built-in proposer as a process of its own: `python -m worker.builtin`, JSON in, JSON out.

It runs the problem's reference, which a stranger may have written, so it gets no secrets: an environment of named
variables, a session of its own, and a deadline after which it and its children are killed. It is no sandbox: what the
reference reads on this machine, it can read. Candidates are run elsewhere, in the judge's runner.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from db.vocabulary import Failure
from search.proposing import Proposal
from worker.briefing import Brief

DEADLINE_S: Final = 300.0
"""A compiler seed takes Inductor 20 s on two cores, and up to some minutes for a large reference on a busy machine."""
KEPT: Final = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CC",
    "CXX",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "KERNELWRIGHT_HOME",
)
_DETAIL_CHARS: Final = 500
_menu_sizes: dict[str, int] = {}
"""How many seeds a problem has for a target, as far as this process was told: past the last one no process is started,
which would take 4 s to say so. Only a hint, lost with the process."""


class BuiltinProcess:
    """One run of the built-in proposer."""

    def __init__(self, home: Path, *, deadline_s: float = DEADLINE_S) -> None:
        self._home = home
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._killed = False

    def propose(self, brief: Brief) -> Proposal:
        """Built-in seed number `brief.builtin_index`, or the failure: `exhausted`, `provider_error` for a crash."""
        request = {
            "problem_source": brief.request.problem_source,
            "problem_name": brief.request.problem_name,
            "hardware": brief.hardware,
            "language": brief.language,
            "winners": [dict(winner) for winner in brief.request.hints],
            "index": brief.builtin_index,
        }
        menu = json.dumps({name: value for name, value in request.items() if name != "index"})
        if brief.builtin_index >= _menu_sizes.get(menu, brief.builtin_index + 1):
            return _exhausted()
        try:
            output, errors, status = self._run(json.dumps(request))
        except subprocess.TimeoutExpired:
            return _failed(f"the built-in proposer took longer than {self._deadline_s:g} s")
        if status != 0:
            return _failed(f"the built-in proposer ended with status {status}: {errors[-_DETAIL_CHARS:]}")
        try:
            answer = json.loads(output.splitlines()[-1])
            _menu_sizes[menu] = int(answer["menu_size"])
            return _read(answer)
        except (ValueError, IndexError, KeyError, TypeError):
            return _failed(f"the built-in proposer answered {output[-_DETAIL_CHARS:]!r}")

    def kill(self) -> None:
        """End it and its children, from any thread."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                _kill_session(self._process)

    def _run(self, request: str) -> tuple[str, str, int]:
        with self._start() as process:
            try:
                output, errors = process.communicate(request + "\n", timeout=self._deadline_s)
            finally:
                _kill_session(process)
        return output, errors, process.returncode

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker.builtin", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=_environment(self._home),
                start_new_session=True,
            )
            if self._killed:
                _kill_session(self._process)
            return self._process


def _kill_session(process: subprocess.Popen[str]) -> None:
    # The session outlives its leader as long as a child runs, so killing is right even after the leader ended.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"KERNELWRIGHT_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _read(answer: dict[str, Any]) -> Proposal:
    if answer.get("exhausted"):
        return _exhausted()
    return Proposal(source=str(answer["source"]), plan=f"{answer['kind']} {answer['name']}: {answer['plan']}")


def _exhausted() -> Proposal:
    return Proposal(failure=Failure.EXHAUSTED, detail="the built-in proposer has nothing left for this problem")


def _failed(detail: str) -> Proposal:
    return Proposal(failure=Failure.PROVIDER_ERROR, detail=detail)
