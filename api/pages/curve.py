"""The best-so-far curve of a job: each candidate's speedup in the order they were made, and the best until then."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.pages.scales import Scale
from db.vocabulary import Verdict

Node = Mapping[str, Any]

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


def curve(nodes: Sequence[Node], budget: int, width: int, height: int = 260) -> Curve | None:
    """The curve of a job's tree; None while no candidate has a speedup."""
    timed = [node for node in nodes if node["verdict"] == Verdict.OK and node["speedup"] is not None]
    if not timed:
        return None
    top = max(node["speedup"] for node in timed)
    last = max(budget, nodes[-1]["ordinal"])
    across = Scale(0, last, _LEFT, width - 14)
    up = Scale(0, max(top * 1.08, 1.1), height - _BOTTOM, _TOP)
    best = _record_holders(timed)
    marks = [_mark(node, across, up, node["ordinal"] in best) for node in _drawn(nodes, best)]
    return Curve(
        width=width,
        height=height,
        marks=marks,
        line=_steps(
            [(across(n["ordinal"]), up(n["speedup"])) for n in timed if n["ordinal"] in best], across(_end(nodes))
        ),
        ones=up(1.0),
        ticks_x=[(across(tick), f"{tick:g}") for tick in across.ticks(7 if width > 500 else 5)],
        ticks_y=[(up(tick), f"{tick:g}×") for tick in up.ticks(6)],
        left=_LEFT,
        right=width - 14,
        bottom=height - _BOTTOM,
        words=_words(nodes, timed, best),
    )


def _record_holders(timed: Sequence[Node]) -> dict[int, None]:
    best, holders = 0.0, dict[int, None]()
    for node in timed:
        if node["speedup"] > best:
            best = node["speedup"]
            holders[node["ordinal"]] = None
    return holders


def _drawn(nodes: Sequence[Node], best: Container[int]) -> list[Node]:
    judged = [node for node in nodes if node["verdict"] is not None]
    step = math.ceil(len(judged) / _MOST_MARKS) or 1
    return [node for place, node in enumerate(judged) if place % step == 0 or node["ordinal"] in best]


def _end(nodes: Sequence[Node]) -> int:
    ordinal: int = nodes[-1]["ordinal"]
    return ordinal


def _mark(node: Node, across: Scale, up: Scale, best: bool) -> Mark:
    ok = node["verdict"] == Verdict.OK and node["speedup"] is not None
    y = up(node["speedup"]) if ok else up(0) - _FAILED_AT
    says = f"{node['speedup']:.2f}×" if ok else str(node["verdict"]).replace("_", " ")
    kind = ("best" if best else "ok") if ok else "failed"
    return Mark(across(node["ordinal"]), y, kind, f"#{node['ordinal']} {node['operator']}: {says}")


def _steps(points: Sequence[tuple[float, float]], until: float) -> str:
    """A path that keeps its height until the next record."""
    (x, y), *others = points
    return f"M{x:g} {y:g}" + "".join(f" H{x:g} V{y:g}" for x, y in others) + f" H{until:g}"


def _words(nodes: Sequence[Node], timed: Sequence[Node], best: Mapping[int, None]) -> str:
    found = {node["ordinal"]: node["speedup"] for node in timed}
    path = ", ".join(f"{found[ordinal]:.2f} at candidate {ordinal}" for ordinal in list(best)[-6:])
    return f"{len(nodes)} candidates, {len(timed)} right and timed. The best speedup rose to {path}."
