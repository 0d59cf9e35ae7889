"""A run: processes of judges over one device's locks in a temporary folder, and the traces that they leave."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from benchmarks.rehearsal import judge
from benchmarks.rehearsal.clock import Clock
from benchmarks.rehearsal.stages import STAGES, Operator, Stages, operators
from benchmarks.rehearsal.trace import Interval, read
from worker.judge import phases


@dataclass(frozen=True, slots=True)
class Plan:
    """What to rehearse."""

    judges: int
    seconds: float
    seed: int
    scale: float = 1.0
    memory_gib: float = 140.0
    rhythm: phases.Rhythm = phases.GPU
    stages: Stages = STAGES
    operators: int = 100


@dataclass(slots=True)
class _Next:
    """Hands out operators, each to one judge."""

    waiting: list[Operator]
    given: Synchronized[int]

    def __call__(self) -> Operator | None:
        with self.given.get_lock():
            place = self.given.value
            self.given.value += 1
        return self.waiting[place] if place < len(self.waiting) else None


def rehearse(plan: Plan) -> list[Interval]:
    """Run it. Raises RuntimeError when a judge failed."""
    context = multiprocessing.get_context("fork")
    waiting = operators(random.Random(plan.seed), plan.operators)
    next_one = _Next(waiting, context.Value("i", 0))
    clock = Clock(time.monotonic(), plan.scale, plan.seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            context.Process(
                target=judge.work,
                args=(number, folder, clock, plan.rhythm, plan.memory_gib, next_one, 1000 * plan.seed + number,
                      plan.stages),
            )
            for number in range(plan.judges)
        ]  # fmt: skip
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if failed := [process.exitcode for process in processes if process.exitcode]:
            raise RuntimeError(f"judges ended with {failed}")
        return read(folder)
