"""How near the tuner comes to the optimum of spaces that were measured exhaustively, in a tenth of the evaluations.

    python -m benchmarks.tuning                       # every recorded space, 20 seeds
    python -m benchmarks.tuning --quick --json out.json

Each cell is the median over the seeds of the best speedup found, as a share of the best there is. All get the same
number of evaluations: a tenth of the space. Ours begins with the configuration that the source has, which counts as
one. Wanted: at least 0.95. Recording: `python -m benchmarks.tuning.record`. Peers: `benchmarks/tuning/peers.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.tuning import peers
from benchmarks.tuning.spaces import Recorded, recorded
from search.proposing import Trial
from search.tuning import suggest

SHARE = 0.1
WANTED = 0.95

Search = Callable[[Recorded, int, int], float]
"""(space, seed, evaluations) -> the best speedup found."""


def ours(space: Recorded, seed: int, evaluations: int) -> float:
    """The tuner of `search.tuning`."""
    trials = [Trial(space.space.defaults, 1.0)]
    while len(trials) < evaluations:
        params = suggest(space.space, trials, seed)
        if params is None:
            break
        trials.append(Trial(params, space.speedup(params)))
    return max(trial.speedup or 0.0 for trial in trials)


def dice(space: Recorded, seed: int, evaluations: int) -> float:
    """Random search without repetition."""
    tried = random.Random(seed).sample(list(space.space.configurations()), evaluations)
    return max(space.speedup(params) or 0.0 for params in tried)


def of_peer(strategy: str, folder: Path) -> Search:
    """One of Kernel Tuner's strategies; what it prints is dropped."""
    caches: dict[str, Path] = {}

    def search(space: Recorded, seed: int, evaluations: int) -> float:
        if space.name not in caches:
            caches[space.name] = peers.write_cache(space, folder)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return peers.best_found(strategy, space, caches[space.name], seed, evaluations)

    return search


def shares(search: Search, space: Recorded, seeds: int) -> list[float]:
    """What each seed reached, as a share of the best."""
    evaluations = max(2, int(SHARE * space.size))
    return [search(space, seed, evaluations) / space.best for seed in range(seeds)]


def table(searches: dict[str, Search], spaces: Sequence[Recorded], seeds: int) -> dict[str, dict[str, list[float]]]:
    """Measure and print, a row for each space."""
    found: dict[str, dict[str, list[float]]] = {}
    width = max(len(space.name) for space in spaces)
    say(f"{'space':{width}}  size  eval  as it is  " + "  ".join(f"{name[:12]:>12}" for name in searches))
    for space in spaces:
        found[space.name] = {name: shares(search, space, seeds) for name, search in searches.items()}
        cells = "  ".join(f"{statistics.median(values):12.3f}" for values in found[space.name].values())
        evaluations = max(2, int(SHARE * space.size))
        say(f"{space.name:{width}}  {space.size:4}  {evaluations:4}  {1 / space.best:8.3f}  {cells}")
    return found


def say(text: str) -> None:
    """One line on standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Print the table; 1 when our median is below what is wanted on a space."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seeds, no peers")
    parser.add_argument("--json", type=Path, help="write every seed's share there")
    options = parser.parse_args()
    searches: dict[str, Search] = {"ours": ours, "random": dice}
    with tempfile.TemporaryDirectory() as folder:
        if peers.available() and not options.quick:
            searches |= {name: of_peer(name, Path(folder)) for name in peers.STRATEGIES}
        found = table(searches, list(recorded()), 5 if options.quick else 20)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    below = [name for name, columns in found.items() if statistics.median(columns["ours"]) < WANTED]
    say(f"below {WANTED} of the best: {', '.join(below) or 'none'}")
    return bool(below)


if __name__ == "__main__":
    sys.exit(main())
