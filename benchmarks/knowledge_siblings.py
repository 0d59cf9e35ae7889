"""Does a solved sibling shorten the next search? On spaces that were measured exhaustively (benchmarks/data/tuning).

    python -m benchmarks.knowledge_siblings

Two problems are siblings when their op families and the names of their kernels' tunables are the same. The sibling's
job is played first: so many evaluations by the tuner, and its best configuration is what the knowledge base would keep.
Then the other problem is played twice: cold, where the recipe comes as it is written and the tuner goes on; and told of
that configuration, with which the built-in menu then begins, the recipe as it is written being second
(`worker.builtin.menu.begun_with`). What counts is how many evaluations, the first included, it takes to gain what the
sibling gained over its recipe as written (at most the best that there is here). Latencies are the recorded ones;
nothing is run. Exit code 1: told takes more than half of cold, in the median over all pairs and seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tuning.problems import problem
from benchmarks.tuning.spaces import FOLDER, Recorded, recorded
from search.proposing import Trial
from search.tuning import suggest
from search.types import Params

SEEDS = 20
BUDGET = 20
"""Evaluations of the sibling's job, and the most that either search gets."""
CLOSE = 0.98
"""Of the gain in speed that counts as reached: two per cent is what repetitions differ by."""
WANTED = 0.5


def siblings(spaces: Sequence[Recorded]) -> Iterator[tuple[Recorded, Recorded]]:
    """A solved space and one to be searched."""
    for solved in spaces:
        for new in spaces:
            alike = _family(solved) == _family(new) and solved.space.values.keys() == new.space.values.keys()
            if alike and solved is not new:
                yield solved, new


def _family(space: Recorded) -> str:
    return problem(space.name.split(".")[0]).spec.op_family


def compare(solved: Recorded, new: Recorded) -> dict[str, Any]:
    """Evaluations to gain what the sibling gained, cold and told, seed by seed. Not reached: budget + 1."""
    cold, told, targets = [], [], []
    for seed in range(SEEDS):
        winner = max(_played(solved, [solved.space.defaults], seed), key=lambda trial: trial.speedup or 0.0)
        target = CLOSE * min(winner.speedup or 1.0, new.best)
        targets.append(target)
        first = [winner.params] if new.space.allows(winner.params) else []
        cold.append(_evaluations(new, [new.space.defaults], seed + 1_000, target))
        told.append(_evaluations(new, [*first, new.space.defaults], seed + 1_000, target))
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


def _evaluations(space: Recorded, seeds: Sequence[Params], seed: int, target: float) -> int:
    trials = _played(space, seeds, seed, target)
    return len(trials) if (trials[-1].speedup or 0.0) >= target else BUDGET + 1


def _played(space: Recorded, seeds: Sequence[Params], seed: int, target: float = math.inf) -> list[Trial]:
    """What the job evaluates, its seeds first, until the target is reached, or the budget, or nothing is left."""
    trials: list[Trial] = []
    while len(trials) < BUDGET and not (trials and (trials[-1].speedup or 0.0) >= target):
        params = seeds[len(trials)] if len(trials) < len(seeds) else suggest(space.space, trials, seed)
        if params is None:
            break
        trials.append(Trial(params, space.speedup(params)))
    return trials


def summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all pairs and seeds: the medians, and in how many pairs told takes at most half of cold."""
    cold, told = ([count for pair in pairs for count in pair[name]] for name in ("cold", "told"))
    return {
        "cold_median": statistics.median(cold),
        "told_median": statistics.median(told),
        "pairs": len(pairs),
        "pairs_in_half": sum(pair["told_median"] <= WANTED * pair["cold_median"] for pair in pairs),
        "pairs_behind": sum(pair["told_median"] > pair["cold_median"] for pair in pairs),
    }


def main() -> int:
    """Compare every pair of siblings and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, help="write every seed's counts there")
    options = parser.parse_args()
    pairs = [compare(solved, new) for solved, new in siblings(list(recorded(options.folder)))]
    width = max(len(pair[side]) for pair in pairs for side in ("solved", "new"))
    for pair in pairs:
        gains = f"{pair['target_gain_median']:.2f} of {pair['best_gain']:.2f}"
        counts = f"cold {pair['cold_median']:4}  told {pair['told_median']:4}"
        sys.stdout.write(f"{pair['solved']:{width}}  {pair['new']:{width}}  gain {gains}  {counts}\n")
    found = summary(pairs)
    sys.stdout.write(json.dumps(found) + "\n")
    if options.out:
        document = {"budget": BUDGET, "seeds": SEEDS, "summary": found, "pairs": pairs}
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(found["told_median"] > WANTED * found["cold_median"])


if __name__ == "__main__":
    sys.exit(main())
