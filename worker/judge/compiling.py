"""A problem's baselines compiled before they are needed, while its first candidate is built."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from worker.judge.baselines import Unusable, compile_ahead
from worker.judge.lease import DeviceLease
from worker.judge.reference.problem import Problem
from worker.judge.runners.processes import Processes
from worker.judge.runners.sessions import Runner
from worker.judge.verdict import Fault, ReferenceFailed
from worker.runner.memory import CudaDriverError

log = structlog.get_logger()

_MOST_RUNNERS = 6
"""Each has a context of 0.5 GB on a GPU, and up to 3 GB of the machine's memory. With five for six workloads the one
that had two was waited for, while 40 of 64 cores were free: 103 s a problem, in the mean of 26."""


@dataclass(slots=True)
class Compiling:
    """One problem at a time, in a thread."""

    processes: Processes
    lease: DeviceLease
    device: str
    take_room: Callable[[Problem, str], None]
    """Waits until a GPU's memory has room for it."""
    note: Callable[[str], Path]
    """The file that says, by a problem's source hash, that it was done on this machine: where a finalist came to
    another judge it was all done again, 15 to 60 s with everything in the caches (H100)."""
    unusable: Callable[[str], Unusable]
    """Which baselines are none on this machine, by a problem's source hash."""
    at_once: int = max(1, min(_MOST_RUNNERS, (os.cpu_count() or 1) // 5))
    """Runners that compile."""
    _thread: threading.Thread | None = None

    def done(self, problem: Problem) -> bool:
        """Whether it was done before on this machine, by any judge of this home."""
        return self.note(problem.outline.source_hash).exists()

    @property
    def begun(self) -> bool:
        """Whether it was begun and not waited for yet."""
        return self._thread is not None

    @property
    def busy(self) -> bool:
        """Whether something is being compiled."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, problem: Problem, hardware: str, seed: int) -> None:
        """Begin. A failure costs nothing: what is not in the cache then is compiled when it is needed."""
        self.processes.start()  # not by the thread: what starts processes has to outlive them
        self._thread = threading.Thread(target=self._compile, args=(problem, hardware, seed), daemon=True)
        self._thread.start()

    def wait(self) -> bool:
        """Until it is over, if it was begun; whether it was."""
        begun, self._thread = self._thread, None
        if begun is not None:
            begun.join()
        return begun is not None

    def _compile(self, problem: Problem, hardware: str, seed: int) -> None:
        self.take_room(problem, hardware)  # before the lock: nobody who has that waits for room
        with self.note(problem.outline.source_hash).with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.done(problem):  # by a judge of another device, which had the lock until now
                self._fill_cache(problem, hardware, seed)

    def _fill_cache(self, problem: Problem, hardware: str, seed: int) -> None:
        began, turns, turns_s = time.monotonic(), self.lease.turns_had, self.lease.turns_s
        runners: list[Runner] = []
        try:
            for _number in range(min(self.at_once, len(problem.workloads(hardware)))):
                runners.append(self.processes.baseline_runner(problem.outline.source_hash))
                runners[-1].turn = self.lease.turn
            unusable = self.unusable(problem.outline.source_hash)
            whole = compile_ahead(problem, hardware, self.device, seed, runners, self.lease.briefly, unusable)
            if whole:
                self.note(problem.outline.source_hash).touch()
        except (Fault, ReferenceFailed, torch.OutOfMemoryError, CudaDriverError) as failure:
            log.warning("baselines.not_compiled_ahead", reason=str(failure)[:300])
        finally:
            for runner in runners:
                runner.close()
        log.info(
            "baselines.compiled_ahead",
            problem=problem.outline.name,
            wall_s=round(time.monotonic() - began, 1),
            turns=self.lease.turns_had - turns,
            turns_s=round(self.lease.turns_s - turns_s, 1),
        )
