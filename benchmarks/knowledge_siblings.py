"""Does a solved sibling shorten the next search? On spaces that were measured exhaustively (benchmarks/data/tuning).

    python -m benchmarks.knowledge_siblings

Two problems are siblings when their op families and the names of their kernels' tunables are the same. The sibling's
job is played first: so many evaluations by the tuner, and its best configuration is what the knowledge base would keep.
Then the other problem is played twice: cold, where the recipe comes as it is written and the tuner goes on; and told of
that configuration, with which the built-in menu then begins, the recipe as it is written being second
(`worker.builtin.menu.begun_with`). What counts is how many evaluations, the first included, it takes to gain what the
sibling gained over its recipe as written. Where nothing here gains as much, which `reachable` counts, no search can
reach it: those seeds have no part in the first two columns. In the columns after them the best configuration that there
is here is the target of these seeds. Latencies are the recorded ones; nothing is run. Exit code 1: told takes more than
half of cold, in the median over all pairs and seeds whose target can be reached.
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
    runs = []
    for seed in range(SEEDS):
        winner = max(_played(solved, [solved.space.defaults], seed), key=lambda trial: trial.speedup or 0.0)
        gained = winner.speedup or 1.0
        target = CLOSE * min(gained, new.best)
        first = [winner.params] if new.space.allows(winner.params) else []
        runs.append(
            {
                "gained": round(gained, 3),
                "reachable": CLOSE * gained <= new.best,
                "cold": _evaluations(new, [new.space.defaults], seed + 1_000, target),
                "told": _evaluations(new, [*first, new.space.defaults], seed + 1_000, target),
            }
        )
    return {"solved": solved.name, "new": new.name, "best_gain": round(new.best, 3), "runs": runs}


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


def medians(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Evaluations of the cold and of the told ones. NaN: there are no runs."""
    if not runs:
        return math.nan, math.nan
    return statistics.median(run["cold"] for run in runs), statistics.median(run["told"] for run in runs)


def reachable(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those whose target some configuration reaches."""
    return [run for run in runs if run["reachable"]]


def summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over all pairs and seeds, and in how many pairs told takes at most half of cold, or more than it."""
    runs = [run for pair in pairs for run in pair["runs"]]
    each = [medians(found) for pair in pairs if (found := reachable(pair["runs"]))]
    cold, told = medians(reachable(runs))
    every_cold, every_told = medians(runs)
    return {
        "runs": len(runs),
        "reachable": len(reachable(runs)),
        "cold_median": cold,
        "told_median": told,
        "pairs": len(each),
        "pairs_in_half": sum(warm <= WANTED * without for without, warm in each),
        "pairs_behind": sum(warm > without for without, warm in each),
        "cold_median_to_the_best": every_cold,
        "told_median_to_the_best": every_told,
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
        gained = statistics.median(run["gained"] for run in pair["runs"])
        able = reachable(pair["runs"])
        counts = "cold {:4}  told {:4}  of {:2}".format(*medians(able), len(able))
        best = "cold {:4}  told {:4}".format(*medians(pair["runs"]))
        gains = f"gained {gained:.2f}, here at most {pair['best_gain']:.2f}"
        sys.stdout.write(f"{pair['solved']:{width}}  {pair['new']:{width}}  {gains}   {counts}   {best}\n")
    found = summary(pairs)
    sys.stdout.write(json.dumps(found) + "\n")
    if options.out:
        document = {"budget": BUDGET, "seeds": SEEDS, "summary": found, "pairs": pairs}
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(found["told_median"] > WANTED * found["cold_median"])


if __name__ == "__main__":
    sys.exit(main())
