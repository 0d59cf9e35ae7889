"""Windows side by side: how many times as many evaluations, and whether a kernel is timed alike in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

import numpy as np

_RESAMPLES = 2000
_LEAST_S = 0.1

Ended = Mapping[str, Sequence[float]]
"""The seconds at which each worker's evaluations ended, in ascending order."""
Gaps = tuple[float, np.ndarray]
"""Of one worker: the share of a side's windows in which it was at work, and the seconds between one end and the next of
all of them."""


def per_hour(ended_s: Ended) -> float:
    """Evaluations an hour of all workers together, each by the time between its first and its last one, since of ten in
    a window the parts of evaluations at its edges are a tenth. A worker with fewer than two adds nothing."""
    return sum(3600 / float(gaps.mean()) for _share, gaps in _gaps([ended_s]) if gaps.size and gaps.mean() > 0)


def compared(
    these: Sequence[Mapping[str, Any]], those: Sequence[Mapping[str, Any]], *, same: bool = False
) -> dict[str, Any]:
    """The evaluations of `those` windows per one of `these`, with a 95 % interval, by the times between one end and the
    next, and as `counted`, with what was lost at the windows' ends; and for each problem the controls of each worker
    there: `pairs` of one here and one there, the share whose 95 % intervals overlap (`within`), and the `ratio` of
    their median speedups. `same`: of one service, so that a worker's controls are held against its own.
    Raises ValueError where a worker has no two evaluations in one window."""
    here, there = (_gaps([window["ended_s"] for window in side]) for side in (these, those))
    if not here or not there or not all(gaps.size and gaps.mean() > 0 for _share, gaps in here + there):
        raise ValueError("a worker has no two evaluations to tell a rate from: let it go on for longer")
    ours, theirs = _controls(these), _controls(those)
    pairs = {
        (problem, worker): (_of(worker, ours[problem]) if same else ours[problem], _of(worker, theirs[problem]))
        for problem in sorted(ours.keys() & theirs.keys())
        for worker in sorted({each["worker"] for each in theirs[problem]})
    }
    controls: dict[str, dict[str, Any]] = {}
    for (problem, worker), (mine, yours) in pairs.items():
        if mine:
            controls.setdefault(problem, {})[worker] = _timed(mine, yours)
    return {
        "evaluations": round(float(_rate(there) / _rate(here)), 2),
        "ci95": _interval(here, there),
        "counted": round(_counted(those) / _counted(these), 2),
        "controls": controls,
    }


def _counted(windows: Sequence[Mapping[str, Any]]) -> float:
    """Evaluations a second."""
    return float(sum(each["evaluations"] for each in windows) / sum(each["wall_s"] for each in windows))


def _gaps(windows: Sequence[Ended]) -> list[Gaps]:
    found: dict[str, list[np.ndarray]] = {}
    for window in windows:
        for worker, ended_s in window.items():
            found.setdefault(worker, []).append(np.diff(ended_s))
    return [(len(gaps) / len(windows), np.concatenate(gaps)) for gaps in found.values()]


def _rate(gaps: Sequence[Gaps], mean: Callable[[np.ndarray], Any] = np.mean) -> Any:
    """Evaluations a second of a side's workers."""
    return sum(share / np.maximum(mean(each), _LEAST_S) for share, each in gaps)


def _interval(here: Sequence[Gaps], there: Sequence[Gaps]) -> list[float]:
    """Percentile bootstrap (Efron, 1979) over each worker's times between one end and the next: workers take as long as
    each other, while what all of them ended lies as it comes."""
    dice = np.random.default_rng(0)

    def drawn(gaps: np.ndarray) -> Any:
        return dice.choice(gaps, (_RESAMPLES, gaps.size)).mean(axis=1)

    low, high = np.quantile(_rate(there, drawn) / _rate(here, drawn), (0.025, 0.975))
    return [round(float(low), 2), round(float(high), 2)]


def _timed(these: list[Any], those: list[Any]) -> dict[str, float]:
    pairs = [(this["ci95"], that["ci95"]) for this, that in product(these, those)]
    overlapping = sum(this[0] <= that[1] and that[0] <= this[1] for this, that in pairs)
    ratio = median(each["speedup"] for each in those) / median(each["speedup"] for each in these)
    return {"pairs": len(pairs), "within": round(overlapping / len(pairs), 3), "ratio": round(ratio, 3)}


def _of(worker: str, controls: Sequence[Any]) -> list[Any]:
    return [each for each in controls if each["worker"] == worker]


def _controls(windows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Those with a measured speedup, by problem."""
    found: dict[str, list[Any]] = {}
    for each in (control for window in windows for control in window["controls"]):
        if each["ci95"] is not None:
            found.setdefault(each["problem"], []).append(each)
    return found
