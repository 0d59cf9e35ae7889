"""The best-so-far curve of a job: each candidate's speedup in the order they were made, and the best until then."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from api.pages.scales import Scale
from db.candidates import TreeRow
from db.vocabulary import Verdict

_LEFT, _TOP, _BOTTOM = 44, 16, 44
_FAILED_AT = 8
"""Pixels above the axis at which candidates without a speedup stand."""
_MOST_MARKS = 800
"""Of a longer search all that were the best, and of the others every so many."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One candidate; `kind` is its class: best, ok or failed."""

    x: float
    y: float
    kind: str
    hint: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A drawing, ready to be written down."""

    width: int
    height: int
    marks: Sequence[Mark]
    line: str
    ones: float | None
    """Where the fastest baseline is."""
    ticks_x: Sequence[tuple[float, str]]
    ticks_y: Sequence[tuple[float, str]]
    left: float
    right: float
    bottom: float
    words: str


def curve(nodes: Sequence[TreeRow], budget: int, width: int, height: int = 260) -> Curve | None:
    """The curve of a job's tree; None while no candidate has a speedup."""
    timed = {node.ordinal: speedup for node in nodes if (speedup := _speedup(node)) is not None}
    if not timed:
        return None
    last = max(budget, nodes[-1].ordinal)
    across = Scale(0, last, _LEFT, width - 14)
    up = Scale(0, max(max(timed.values()) * 1.08, 1.1), height - _BOTTOM, _TOP)
    best = _record_holders(timed)
    marks = [_mark(node, across, up, node.ordinal in best) for node in _drawn(nodes, best)]
    return Curve(
        width=width,
        height=height,
        marks=marks,
        line=_steps([(across(each), up(speedup)) for each, speedup in best.items()], across(nodes[-1].ordinal)),
        ones=up(1.0),
        ticks_x=[(across(tick), f"{tick:g}") for tick in across.ticks(7 if width > 500 else 5)],
        ticks_y=[(up(tick), f"{tick:g}×") for tick in up.ticks(6)],
        left=_LEFT,
        right=width - 14,
        bottom=height - _BOTTOM,
        words=_words(len(nodes), len(timed), best),
    )


def _speedup(node: TreeRow) -> float | None:
    """Of a candidate that is right and was timed."""
    return node.speedup if node.verdict == Verdict.OK else None


def _record_holders(timed: Mapping[int, float]) -> dict[int, float]:
    """Those that were faster than all before them; speedups by ordinal."""
    best: dict[int, float] = {}
    for ordinal, speedup in timed.items():
        if not best or speedup > next(reversed(best.values())):
            best[ordinal] = speedup
    return best


def _drawn(nodes: Sequence[TreeRow], best: Container[int]) -> list[TreeRow]:
    judged = [node for node in nodes if node.verdict is not None]
    step = math.ceil(len(judged) / _MOST_MARKS) or 1
    return [node for place, node in enumerate(judged) if place % step == 0 or node.ordinal in best]


def _mark(node: TreeRow, across: Scale, up: Scale, best: bool) -> Mark:
    speedup = _speedup(node)
    if speedup is None:
        kind, y, says = "failed", up(0) - _FAILED_AT, str(node.verdict).replace("_", " ")
    else:
        kind, y, says = "best" if best else "ok", up(speedup), f"{speedup:.2f}×"
    return Mark(across(node.ordinal), y, kind, f"#{node.ordinal} {node.operator}: {says}")


def _steps(points: Sequence[tuple[float, float]], until: float) -> str:
    """A path that keeps its height until the next record."""
    (x, y), *others = points
    return f"M{x:g} {y:g}" + "".join(f" H{x:g} V{y:g}" for x, y in others) + f" H{until:g}"


def _words(candidates: int, timed: int, best: Mapping[int, float]) -> str:
    path = ", ".join(f"{speedup:.2f} at candidate {ordinal}" for ordinal, speedup in list(best.items())[-6:])
    return f"{candidates} candidates, {timed} right and timed. The best speedup rose to {path}."
