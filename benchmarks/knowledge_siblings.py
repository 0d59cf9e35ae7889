"""Does a solved sibling shorten the next search? On spaces that were measured exhaustively (benchmarks/data/tuning).

    python -m benchmarks.knowledge_siblings

Two problems are siblings when their op families and the names of their kernels' tunables are the same. The sibling's
job is played first: so many evaluations by the tuner, and its best configuration is what the knowledge base would keep.
Then the other problem is played twice: cold, where the recipe comes as it is written and the tuner goes on, and told of
that configuration, with which the built-in menu then begins. What counts is how many evaluations, the first included,
it takes to gain what the sibling gained over its first configuration (at most the best that there is here). Latencies
are the recorded ones; nothing is run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from problems.catalog import bundled
from search.proposing import Trial
from search.tunables import Space
from search.tuning import hinted, suggest
from search.types import Params, ParamValue

FOLDER = Path(__file__).parent / "data" / "tuning"
SEEDS = 20
BUDGET = 20
"""Evaluations of the sibling's job, and the most that either search gets."""

CLOSE = 0.98
"""Of the gain in speed that counts as reached: two per cent is what repetitions differ by."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One space with what each configuration took, as a geometric mean over workloads (None: it failed)."""

    name: str
    space: Space
    time_us: Mapping[tuple[ParamValue, ...], float | None]

    def gain(self, params: Params) -> float | None:
        """Speed against the first configuration."""
        mine = self.time_us[tuple(params[name] for name in self.space.values)]
        first = self.time_us[tuple(self.space.defaults[name] for name in self.space.values)]
        return first / mine if mine and first else None

    @property
    def problem(self) -> str:
        """The bundled problem: files are called `problem.recipe.json`."""
        return self.name.partition(".")[0]

    @property
    def best(self) -> float:
        """The gain of the best configuration."""
        return max(gain for params in self.space.configurations() if (gain := self.gain(params)))


def read(path: Path) -> Measured:
    """The space in a file of benchmarks/data/tuning."""
    data = json.loads(path.read_text(encoding="utf-8"))
    values = {name: tuple(choices) for name, choices in data["values"].items()}
    space = Space(values, data["defaults"], tuple(data["constraints"]))
    return Measured(data["name"], space, {tuple(key): _mean(found) for key, found in data["latency_us"]})


def _mean(latencies_us: Sequence[float] | None) -> float | None:
    return math.exp(statistics.fmean(map(math.log, latencies_us))) if latencies_us else None


def siblings(spaces: Sequence[Measured]) -> Iterator[tuple[Measured, Measured]]:
    """A solved space and one to be searched."""
    for solved in spaces:
        for new in spaces:
            alike = _family(solved) == _family(new) and solved.space.values.keys() == new.space.values.keys()
            if alike and solved.problem != new.problem:
                yield solved, new


def _family(space: Measured) -> str:
    return bundled()[space.problem].op_family


def compare(solved: Measured, new: Measured) -> dict[str, Any]:
    """Evaluations to gain what the sibling gained, cold and told; medians over seeds. Not reached: budget + 1."""
    cold, told, targets = [], [], []
    for seed in range(SEEDS):
        winner, gain = _winner(solved, seed)
        target = CLOSE * min(gain, new.best)
        targets.append(target)
        cold.append(_evaluations(new, target, seed + 1_000, ()))
        told.append(_evaluations(new, target, seed + 1_000, (winner,)))
    return {
        "solved": solved.name,
        "new": new.name,
        "target_gain_median": round(statistics.median(targets), 3),
        "best_gain": round(new.best, 3),
        "cold_median": statistics.median(cold),
        "told_median": statistics.median(told),
        "cold": cold,
        "told": told,
    }


def _winner(space: Measured, seed: int) -> tuple[Params, float]:
    """The best configuration of a job of the tuner's, and its gain."""
    trials = _played(space, BUDGET, seed, ())
    best = max(trials, key=lambda trial: trial.speedup or 0.0)
    return best.params, best.speedup or 1.0


def _evaluations(space: Measured, target: float, seed: int, hints: Sequence[Params]) -> int:
    trials = _played(space, BUDGET, seed, hints, target)
    return len(trials) if (trials[-1].speedup or 0.0) >= target else BUDGET + 1


def _played(space: Measured, budget: int, seed: int, hints: Sequence[Params], target: float = math.inf) -> list[Trial]:
    """What the job evaluates, its first kernel first, until the target or the budget is reached."""
    first = next((hint for hint in hints if space.space.allows(hint)), space.space.defaults)
    trials = [Trial(first, space.gain(first))]
    while len(trials) < budget and (trials[-1].speedup or 0.0) < target:
        params = hinted(space.space, trials, hints) or suggest(space.space, trials, seed)
        if params is None:
            break
        trials.append(Trial(params, space.gain(params)))
    return trials


def main() -> None:
    """Compare every pair of siblings and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spaces = [read(path) for path in sorted(options.folder.glob("*.json"))]
    found = [compare(solved, new) for solved, new in siblings(spaces)]
    written = json.dumps({"budget": BUDGET, "seeds": SEEDS, "pairs": found}, indent=2)
    print(written)  # noqa: T201 - the figures are what this is run for
    if options.out:
        options.out.write_text(written + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
