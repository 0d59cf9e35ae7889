"""The handle on judge processes, for workers and the command line.

    with Judge(JudgeOptions(home=home, hardware="cpu")) as judge:
        report = judge.evaluate(EvaluationRequest(...))

One judge process serves one problem, so that one user's reference never shares a process with another's. The few used
last stay alive: a judge holds its problem's truths and warm baselines, which take 5 to 30 s to make, and a worker that
serves two jobs in turn would otherwise make them again for every candidate. On a GPU they hold its memory, up to 65 GB
each for workloads of 400 MB, and give it back when another judge waits for it (`worker.judge.room`). A judge that dies
answers `infra_error`.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.sessions import STEADY_ALLOCATOR
from worker.judge.verdict import ReferenceFailed, Verdict

_KEPT_ALIVE = 2
_PROJECT_ROOT = Path(__file__).resolve().parents[2]
_KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """How to start a judge."""

    home: Path
    """Folder for caches and device locks."""
    hardware: str
    minimum_sandbox: str = "process"
    eager_only: bool = False
    """Race no compiled baseline: for those who ask for verdicts alone (compiling takes 20 s a problem on a CPU, a
    minute on a GPU)."""
    profile: bool = True
    """Look for the bottleneck of accepted candidates (1 to 3 s each on a CPU)."""
    code: bool = False
    """Put the generated code of accepted candidates into their reports (0.2 s each on a CPU)."""
    threads: int | None = None
    """Of its own arithmetic on the CPU, and its runners'; None: one for each core."""


class JudgeFailed(Exception):
    """The machine failed, not the problem or the candidate. The message says how; try again, or on another machine."""


class Judge:
    """Judge processes, each started when first needed; one evaluation at a time."""

    def __init__(self, options: JudgeOptions) -> None:
        self._options = options
        self._processes: collections.OrderedDict[str, subprocess.Popen[str]] = collections.OrderedDict()
        self._current: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._aborted = False

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def evaluate(self, request: EvaluationRequest) -> dict[str, Any]:
        """The judge's report. Raises ReferenceFailed when the problem itself cannot be judged."""
        try:
            return self._ask("evaluate", request.to_json(), request.problem_source)
        except JudgeFailed as failed:
            return _infra_error(request, str(failed))

    def certify(self, request: EvaluationRequest) -> dict[str, Any]:
        """Judge a finalist and issue its certificate (`worker.judge.certificate.document`) as JSON.

        A machine that fails gives the report of an `infra_error`, which is no certificate: it has no `schema`. Raises
        ReferenceFailed when the problem itself cannot be judged.
        """
        try:
            return self._ask("certify", request.to_json(), request.problem_source)
        except JudgeFailed as failed:
            return _infra_error(request, str(failed))

    def fingerprint(self, request: EvaluationRequest) -> str | None:
        """What the candidate is once it is built (`worker.judge.artefacts`), or None where nobody can say before it
        runs. Takes no device time. Raises JudgeFailed when the machine failed."""
        answer = self._ask("fingerprint", request.to_json(), request.problem_source)
        found: str | None = answer["fingerprint"]
        return found

    def measure(self, request: EvaluationRequest, source: str) -> dict[str, Any]:
        """A configuration of a judged candidate (`request`'s), measured quickly: `worker.judge.tuning.Measurement` as
        JSON. Its runner stays for the next configuration until `rest`, or until anything else is asked of this problem.

        Raises ReferenceFailed when the problem itself cannot be judged, JudgeFailed when the machine failed.
        """
        what = {"request": request.to_json(), "source": source}
        return self._ask("measure", what, request.problem_source)

    def rest(self, problem_source: str) -> None:
        """Measuring is over: give its runner back. Raises JudgeFailed when the machine failed."""
        self._ask("rest", {}, problem_source)

    def admit(self, problem_source: str, problem_name: str) -> dict[str, Any]:
        """The admission test of a problem (`worker.judge.reference.findings.Admission`) as JSON.

        Raises ReferenceFailed for a file that is no problem, JudgeFailed when the machine failed.
        """
        what = {"source": problem_source, "name": problem_name, "hardware": self._options.hardware}
        return self._ask("admit", what, problem_source)

    def _ask(self, question: str, what: dict[str, Any], problem_source: str) -> dict[str, Any]:
        with self._lock:
            self._aborted = False
            process = self._current = self._process_for(problem_source)
        answer = _exchange(process, {"ask": question, "what": what})
        ends = answer is None or "infra_error" in answer or bool(answer.get("over"))
        with self._lock:
            self._current = None
            if ends:
                self._processes.pop(problem_source, None)
        if answer is None:
            process.kill()
            _close_pipes(process)  # only now: closing under a reader in another thread is not safe
            raise JudgeFailed("the evaluation was aborted" if self._aborted else "the judge process died")
        if ends:
            self._stop(process)
        if "problem_error" in answer:
            raise ReferenceFailed(answer["problem_error"])
        if "infra_error" in answer:
            raise JudgeFailed(answer["infra_error"])
        return dict(answer["report"])

    def abort(self) -> None:
        """Kill the judge at work and everything below it, from any thread: `evaluate` then returns `infra_error`."""
        with self._lock:
            if self._current is not None:
                self._aborted = True
                self._current.kill()

    def close(self) -> None:
        """End all judge processes."""
        with self._lock:
            while self._processes:
                self._stop(self._processes.popitem()[1])

    def _process_for(self, problem_source: str) -> subprocess.Popen[str]:
        process = self._processes.pop(problem_source, None)
        while process is None and len(self._processes) >= _KEPT_ALIVE:
            self._stop(self._processes.popitem(last=False)[1])
        self._processes[problem_source] = process = process or self._start()
        return process

    def _start(self) -> subprocess.Popen[str]:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        paths = [str(_PROJECT_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= STEADY_ALLOCATOR | {"PYTHONPATH": os.pathsep.join(paths), "HOME": str(self._options.home)}
        environment["OMP_WAIT_POLICY"] = "PASSIVE"  # its idle threads must not take a core from what it times
        options = self._options
        if options.threads is not None:
            environment["OMP_NUM_THREADS"] = str(options.threads)
        chosen = {"eager": options.eager_only, "no-profile": not options.profile, "code": options.code}
        switches = [name for name, on in chosen.items() if on]
        arguments = [str(options.home), options.hardware, options.minimum_sandbox, *switches]
        return subprocess.Popen(
            [sys.executable, "-m", "worker.judge", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @staticmethod
    def _stop(process: subprocess.Popen[str]) -> None:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close_pipes(process)


def _close_pipes(process: subprocess.Popen[str]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # a last unsent request
                pipe.close()


def _exchange(process: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any] | None:
    """Send a request and read the answer; None when the process died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except (OSError, ValueError):  # a broken pipe, or a pipe that abort() closed
        return None
    return json.loads(line) if line.endswith("\n") else None


def _infra_error(request: EvaluationRequest, reason: str) -> dict[str, Any]:
    return Evaluation(request.candidate_id, verdict=Verdict.INFRA_ERROR, reason=reason).to_json()
