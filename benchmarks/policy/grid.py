"""Every contender on every pool with every seed, spread over the cores. Runs depend on nothing but their arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from benchmarks.policy import pool
from benchmarks.policy.contenders import ablations, policies
from benchmarks.policy.programs import SPACES
from benchmarks.policy.replay import Run, search
from benchmarks.policy.world import Answers

QUICK_PROBLEMS, QUICK_SEEDS = 3, 8
SEEDS = 20
BUDGETS = (30, 100)


@dataclass(frozen=True, slots=True)
class Cell:
    """One search to run."""

    contender: str
    problem: str
    budget: int
    seed: int


@dataclass(slots=True)
class Runs:
    """All runs of one contender at one budget, by problem and then by seed."""

    runs: dict[str, list[Run]] = field(default_factory=dict)

    def values(self, name: str) -> dict[str, list[float]]:
        """One figure of every run: `area`, `reached` (the curve's end), `final`, `cost_usd` or `device_s`."""
        return {problem: [float(_figure(run, name)) for run in runs] for problem, runs in self.runs.items()}

    def curve(self) -> list[float]:
        """The mean curve."""
        curves = [run.curve for runs in self.runs.values() for run in runs]
        return [sum(column) / len(column) for column in zip(*curves, strict=True)]

    def answers(self) -> Answers:
        """How all expansions were answered."""
        total = Answers()
        for runs in self.runs.values():
            for run in runs:
                total.add(run.answers)
        return total


def _figure(run: Run, name: str) -> float:
    return run.curve[-1] if name == "reached" else float(getattr(run, name))


Grid = Mapping[int, Mapping[str, Runs]]
"""By budget and contender."""


def replay(
    names: Sequence[str], problems: Sequence[str], seeds: int, budgets: Sequence[int] = BUDGETS, jobs: int | None = None
) -> Grid:
    """Run all of them; contenders are names of `policies()` or of `ablations()`; `jobs`: processes, by default
    one a core."""
    cells = [
        Cell(name, problem, budget, seed)
        for problem in problems
        for budget in budgets
        for name in names
        for seed in range(seeds)
    ]
    grid: dict[int, dict[str, Runs]] = {budget: {name: Runs() for name in names} for budget in budgets}
    with ProcessPoolExecutor(jobs or os.cpu_count()) as workers:
        for cell, run in zip(cells, workers.map(_run, cells, chunksize=8), strict=True):
            grid[cell.budget][cell.contender].runs.setdefault(cell.problem, []).append(run)
    return grid


_POOLS: dict[str, list[pool.Record]] = {}


def _run(cell: Cell) -> Run:
    if cell.problem not in _POOLS:  # once in each process
        _POOLS[cell.problem] = pool.load(cell.problem)
    policy = (policies() | dict(ablations()))[cell.contender]
    return search(SPACES[cell.problem], _POOLS[cell.problem], policy, cell.seed, cell.budget)


def pools() -> Iterator[tuple[str, list[pool.Record]]]:
    """All packed pools."""
    for problem in pool.packed():
        yield problem, pool.load(problem)
