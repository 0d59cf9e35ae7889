"""Figures of the live searches that are recorded: the same as of replay, on a scale of what was ever found live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.policy.intervals import mean_difference, median_interval, win_rate
from benchmarks.policy.live import BUDGET, BUILTIN, FILE, SEEDS, Notes, searches

OURS = BUILTIN


def figures(seeds: int = SEEDS) -> dict[str, Any] | None:
    """By policy: where it ended and the area under its curve. None where nothing is recorded.

    The scale of a problem runs from the slowest first kernel to the fastest kernel of all its searches.
    """
    if not FILE.exists():
        return None
    curves = searches(Notes(FILE, None), seeds)
    done = {problem: len(runs) for problem, runs in curves[OURS].items() if runs}
    if not done:
        return None
    scaled = {name: _scaled(runs, curves, list(done)) for name, runs in curves.items()}
    areas = {name: _each(runs, lambda curve: sum(curve) / len(curve)) for name, runs in scaled.items()}
    ends = {name: _each(runs, lambda curve: curve[-1]) for name, runs in scaled.items()}
    return {
        "seeds": done,
        "budget": BUDGET,
        "ours": OURS,
        "policies": {
            name: {
                "reached": _rounded(median_interval(ends[name])),
                "area": _rounded(median_interval(areas[name])),
                "reached_wins": _rounded(win_rate(ends[OURS], ends[name])),
                "area_wins": _rounded(win_rate(areas[OURS], areas[name])),
                "area_difference": _rounded(mean_difference(areas[name], areas[OURS])),
                "curve": _mean_curve(scaled[name]),
            }
            for name in curves
        },
    }


Curves = Mapping[str, Sequence[Sequence[float]]]
"""By problem and seed."""


def _scaled(runs: Curves, everything: Mapping[str, Curves], problems: Sequence[str]) -> dict[str, list[list[float]]]:
    scaled: dict[str, list[list[float]]] = {}
    for problem in problems:
        values = [value for curves in everything.values() for curve in curves[problem] for value in curve]
        low, high = min(values), max(values)
        scaled[problem] = [[(value - low) / ((high - low) or 1.0) for value in curve] for curve in runs[problem]]
    return scaled


def _each(runs: Curves, figure: Any) -> dict[str, list[float]]:
    return {problem: [float(figure(curve)) for curve in curves] for problem, curves in runs.items()}


def _mean_curve(runs: Curves) -> list[float]:
    curves = [curve for group in runs.values() for curve in group]
    return [round(sum(column) / len(column), 4) for column in zip(*curves, strict=True)]


def _rounded(found: tuple[float, float, float]) -> list[float]:
    return [round(value, 4) for value in found]
