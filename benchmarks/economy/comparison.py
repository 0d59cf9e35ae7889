"""Two runs side by side: how many times as many evaluations, and whether a kernel is timed alike in both."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from statistics import median
from typing import Any


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluations of `other` per one of `one`, and for each problem their controls: `pairs` of one there and one
    here, the share whose 95 % intervals overlap (`within`), and the `ratio` of their median speedups. Raises ValueError
    where `one` has no evaluation."""
    if not one["evaluations_per_hour"]:
        raise ValueError("the run to compare with has no evaluation: let it go on for longer")
    problems = sorted(_controls(one).keys() & _controls(other).keys())
    return {
        "evaluations": round(other["evaluations_per_hour"] / one["evaluations_per_hour"], 2),
        "controls": {problem: _timed(_controls(one)[problem], _controls(other)[problem]) for problem in problems},
    }


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
