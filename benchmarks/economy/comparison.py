"""Two runs side by side: how many times as many evaluations, and whether a kernel is timed alike in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

import numpy as np

_RESAMPLES = 2000

Ended = Mapping[str, Sequence[float]]
"""The seconds at which each worker's evaluations ended, in ascending order."""


def per_hour(ended_s: Ended) -> float:
    """Evaluations an hour of all workers together, each by the time between its first and its last one, since of ten in
    a window the parts of evaluations at its edges are a tenth. A worker with fewer than two adds nothing."""
    return sum(3600 / float(gaps.mean()) for gaps in _gaps(ended_s) if gaps.size and gaps.mean() > 0)


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluations of `other` per one of `one`, with a 95 % interval, and for each problem the controls of each of
    `other`'s workers: `pairs` of one there and one here, the share whose 95 % intervals overlap (`within`), and the
    `ratio` of their median speedups. Raises ValueError where a worker of theirs has no two evaluations."""
    rates = [[per_hour({"": ended_s}) for ended_s in run["ended_s"].values()] for run in (one, other)]
    if not all(each and all(each) for each in rates):
        raise ValueError("a worker has no two evaluations to tell a rate from: let it go on for longer")
    here, there = _controls(one), _controls(other)
    return {
        "evaluations": round(per_hour(other["ended_s"]) / per_hour(one["ended_s"]), 2),
        "ci95": _interval(one["ended_s"], other["ended_s"]),
        "controls": {
            problem: {
                worker: _timed(here[problem], [each for each in there[problem] if each["worker"] == worker])
                for worker in sorted({each["worker"] for each in there[problem]})
            }
            for problem in sorted(here.keys() & there.keys())
        },
    }


def _interval(these: Ended, those: Ended) -> list[float]:
    """Percentile bootstrap (Efron, 1979) over each worker's times between one end and the next: workers take as long as
    each other, while what all of them ended lies as it comes."""
    dice = np.random.default_rng(0)
    here, there = (
        sum(3600 / np.maximum(dice.choice(gaps, (_RESAMPLES, gaps.size)).mean(axis=1), 0.1) for gaps in _gaps(ended_s))
        for ended_s in (these, those)
    )
    low, high = np.quantile(there / here, (0.025, 0.975))
    return [round(float(low), 2), round(float(high), 2)]


def _gaps(ended_s: Ended) -> list[np.ndarray]:
    return [np.diff(each) for each in ended_s.values()]


def _timed(these: list[Any], those: list[Any]) -> dict[str, float]:
    pairs = [(this["ci95"], that["ci95"]) for this, that in product(these, those)]
    overlapping = sum(this[0] <= that[1] and that[0] <= this[1] for this, that in pairs)
    ratio = median(each["speedup"] for each in those) / median(each["speedup"] for each in these)
    return {"pairs": len(pairs), "within": round(overlapping / len(pairs), 3), "ratio": round(ratio, 3)}


def _controls(figures: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Those with a measured speedup, by problem."""
    found: dict[str, list[Any]] = {}
    for each in figures["controls"]:
        if each["ci95"] is not None:
            found.setdefault(each["problem"], []).append(each)
    return found
