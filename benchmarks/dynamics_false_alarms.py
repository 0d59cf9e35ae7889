"""How often the training-dynamics check turns an honest kernel away: leave-one-out over honest variants.

    python -m benchmarks.dynamics_false_alarms [problem] [workload] [variants] [steps]

Each of the variants (default 20) is judged against six of the others, drawn ten times at random, half of them noisy as
in the judge; prints the largest distances per optimiser, the share of judgements that fail at several limits, and the
share that fail at the judge's in a second attempt, too, against twelve and with other text and weights. Runs on cuda
when there is one.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from problems.catalog import bundled
from worker.judge.dynamics import statistics
from worker.judge.dynamics.rehearsal import NULL_RUNS, NULL_RUNS_AGAIN, Rehearsal
from worker.judge.dynamics.seats import Seat, find_seat
from worker.judge.dynamics.training import HOT_ROWS
from worker.judge.reference.problem import Problem, call_reference

_DRAWS, _LIMITS = 10, (3.0, 5.0, 6.0, 8.0, 12.0)


def seat(problem: str, workload: str) -> Seat:
    """The seat of a bundled problem at one workload's sizes."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    loaded = Problem(bundled()[problem].source, problem)
    chosen = next(item for item in loaded.spec.workloads if item.name == workload)
    instance = loaded.instance(chosen, device, 3)
    declared = loaded.spec.seat
    outputs = call_reference(instance.call, instance.like)
    return find_seat(declared.kind if declared else None, instance, instance.like, outputs)


def false_alarms(rehearsal: Rehearsal, rng: random.Random) -> dict[str, Any]:
    """Distances of every variant from random sixes of the others."""
    found: dict[str, Any] = {}
    for name, runs in rehearsal.null.items():
        sixes = [_drawn(rehearsal, name, place, NULL_RUNS, rng) for place in range(len(runs)) for _ in range(_DRAWS)]
        found[name] = _summary([(away.loss, away.drift, away.norm) for away in sixes])
        again = [False]
        if not all(away.passed for away in sixes):
            anew = rehearsal.anew(name, len(runs))
            again = [
                not (first.passed or (first.near and _drawn(anew, name, turn // _DRAWS, NULL_RUNS_AGAIN, rng).passed))
                for turn, first in enumerate(sixes)
            ]
        found[name]["twice"] = sum(again) / len(again)
    return found


def _drawn(rehearsal: Rehearsal, name: str, place: int, count: int, rng: random.Random) -> statistics.Distance:
    """One variant against so many of the others."""
    runs = rehearsal.null[name]
    kinds = [[run for at, run in enumerate(runs) if at != place and at % 2 == odd] for odd in (0, 1)]
    null = [run for kind in kinds for run in rng.sample(kind, min(len(kind), count // 2))]
    return statistics.distance(name, runs[place], null, rehearsal.start["table"][:HOT_ROWS])


def _summary(distances: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    columns = dict(zip(("loss", "drift", "norm"), zip(*distances, strict=True), strict=True))
    share = {str(limit): sum(max(three) > limit for three in distances) / len(distances) for limit in _LIMITS}
    return {
        "largest": {key: round(max(values), 2) for key, values in columns.items()},
        "median": {key: round(sorted(values)[len(values) // 2], 2) for key, values in columns.items()},
        "false_alarms_at_limit": share,
    }


def main() -> None:
    """Print one JSON document."""
    given = [*sys.argv[1:], *("embedding_grad_rmsnorm_backward", "small", "20", "12")[len(sys.argv) - 1 :]]
    started = time.monotonic()
    rehearsal = Rehearsal(seat(given[0], given[1]), 7, steps=int(given[3]), null_runs=int(given[2]))
    answer = {"problem": given[0], "workload": given[1], "variants": int(given[2]), "steps": int(given[3])}
    answer |= {"optimisers": false_alarms(rehearsal, random.Random(1)), "wall_s": round(time.monotonic() - started, 1)}
    sys.stdout.write(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
