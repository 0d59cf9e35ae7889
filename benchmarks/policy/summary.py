"""From runs to the figures that are published: medians, areas, win rates, with intervals; plain JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.policy.grid import Grid, Runs
from benchmarks.policy.intervals import mean_difference, median_interval, win_rate
from benchmarks.policy.pool import Record, failures

FIGURES = ("reached", "area")
"""`reached`: how far up the pool's scale of log-speedup the search got, 0 to 1. `area`: the mean of that over the
budget. Both are comparable between problems; plain speedups are given beside them."""


def compared(grid: Grid, ours: str) -> dict[str, Any]:
    """By budget and contender: medians, and how often `ours` is ahead of it."""
    return {
        str(budget): {name: _row(runs, contenders[ours]) for name, runs in contenders.items()}
        for budget, contenders in grid.items()
    }


def _row(runs: Runs, ours: Runs) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in FIGURES:
        values, mine = runs.values(name), ours.values(name)
        row[name] = _rounded(median_interval(values))
        row[f"{name}_wins"] = _rounded(win_rate(mine, values))
        row[f"{name}_difference"] = _rounded(mean_difference(values, mine))
    row["speedup_by_problem"] = {
        problem: round(statistics.median(final), 3) for problem, final in runs.values("final").items()
    }
    row["cost_usd"] = round(_mean(runs.values("cost_usd")), 3)
    row["device_s"] = round(_mean(runs.values("device_s")), 1)
    row["curve"] = [round(value, 4) for value in runs.curve()]
    answers = runs.answers()
    total = max(1, answers.recorded + answers.fitting + answers.nearest)
    row["answers"] = {
        "recorded": round(answers.recorded / total, 3),
        "fitting": round(answers.fitting / total, 3),
        "nearest": round(answers.nearest / total, 3),
    }
    return row


def _mean(values: Mapping[str, Sequence[float]]) -> float:
    return statistics.fmean(value for group in values.values() for value in group)


def _rounded(figures: tuple[float, float, float]) -> list[float]:
    return [round(figure, 4) for figure in figures]


def pool_facts(records: Sequence[Record]) -> dict[str, Any]:
    """What a pool holds."""
    accepted = sorted(record.speedup for record in records if record.ok and record.speedup is not None)
    widths = [record.ci95[1] / record.ci95[0] for record in records if record.ok and record.ci95 and record.ci95[0] > 0]
    verdicts: dict[str, int] = {}
    for record in records:
        verdicts[record.verdict] = verdicts.get(record.verdict, 0) + 1
    return {
        "programs": len(records),
        "verdicts": dict(sorted(verdicts.items())),
        "failing_by_operator": {name: round(share, 3) for name, share in sorted(failures(records).items())},
        "speedup": {
            "slowest": round(accepted[0], 3),
            "median": round(statistics.median(accepted), 3),
            "fastest": round(accepted[-1], 3),
        },
        "interval_width_median": round(statistics.median(widths), 3),
        "judge_s": round(sum(record.wall_s for record in records)),
    }
