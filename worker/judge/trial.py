"""One candidate under judgement: what every check is given, and how it says what it found."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from worker.judge.exhibits import Exhibits
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.bench import Workbench, Workshop
from worker.judge.runners.sessions import Runner
from worker.judge.verdict import Check, Fault, Verdict

SUBJECT = "candidate"
CONSTRUCT_LIMIT_S, RUN_LIMIT_S = 30.0, 20.0
FIRST_RUN_LIMIT_S = {"cpp": 20.0, "cuda": 60.0, "triton": 120.0}
"""The first call of a Triton candidate compiles, and may autotune; C++ was built at load."""


@dataclass(slots=True)
class Trial:
    """A candidate that is loaded in its runner as subject "candidate"."""

    runner: Runner
    request: EvaluationRequest
    exhibits: Exhibits
    device: str
    """`cpu` or `cuda:0`."""
    rng: random.Random
    """Seeded from the system's entropy: the candidate cannot know what is drawn."""
    evaluation: Evaluation
    benches: dict[str, Workbench] = field(default_factory=dict)
    """By workload name, with the candidate's model made; filled by the first check."""
    workshop: Workshop | None = None
    """What the benches of all workloads share."""
    unstopped: Callable[[float], AbstractContextManager[object]] = nullcontext
    """Keeps its runner from being stopped for others' timings, for so many seconds at most."""

    def record(self, name: str, passed: bool, detail: str = "", **figures: float | str) -> None:
        """Add a row to the report. Nothing follows from a row that did not pass: raise a fault, or use `refuse`."""
        self.evaluation.checks.append(Check(name, passed, detail, dict(figures)))

    def close(self) -> None:
        """Release what is shared with the runner: on a GPU gigabytes, on a CPU descriptors and as much memory."""
        for bench in self.benches.values():
            bench.close()
        self.benches.clear()
        if self.workshop is not None:
            self.workshop.close()
        self.workshop = None

    def refuse(self, name: str, verdict: Verdict, reason: str, **figures: float | str) -> Fault:
        """Record the check that failed and return the fault to raise."""
        self.record(name, False, reason, **figures)
        return Fault(verdict, f"{name}: {reason}", self.runner.log())
