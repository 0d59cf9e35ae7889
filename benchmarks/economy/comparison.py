"""Two runs side by side: how many times as many evaluations, and whether a kernel is timed alike in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

import numpy as np

_RESAMPLES = 2000


def per_hour(ended_s: Sequence[float]) -> float:
    """Evaluations an hour, from the seconds at which they ended in ascending order: by the time between the first and
    the last, since of ten in a window the parts of evaluations at its edges are a tenth. 0 for fewer than two."""
    if len(ended_s) < 2 or ended_s[-1] == ended_s[0]:
        return 0.0
    return 3600 * (len(ended_s) - 1) / (ended_s[-1] - ended_s[0])


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluations of `other` per one of `one`, with a 95 % interval, and for each problem their controls: `pairs`
    of one there and one here, the share whose 95 % intervals overlap (`within`), and the `ratio` of their median
    speedups. Raises ValueError where one of them has no two evaluations."""
    if not per_hour(one["ended_s"]) or not per_hour(other["ended_s"]):
        raise ValueError("a run has no two evaluations to tell a rate from: let it go on for longer")
    problems = sorted(_controls(one).keys() & _controls(other).keys())
    return {
        "evaluations": round(per_hour(other["ended_s"]) / per_hour(one["ended_s"]), 2),
        "ci95": _interval(one["ended_s"], other["ended_s"]),
        "controls": {problem: _timed(_controls(one)[problem], _controls(other)[problem]) for problem in problems},
    }


def _interval(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Percentile bootstrap (Efron, 1979) over the times between one end and the next, which are known to 0.1 s."""
    dice = np.random.default_rng(0)
    gaps = [np.diff(ended_s) for ended_s in (these, those)]
    here, there = (dice.choice(each, (_RESAMPLES, len(each))).mean(axis=1) for each in gaps)
    low, high = np.quantile(here / np.maximum(there, 0.1), (0.025, 0.975))
    return [round(float(low), 2), round(float(high), 2)]


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
