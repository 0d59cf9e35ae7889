"""Timing samples as boxes: for each workload the candidate (or two of them) beside its baselines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.pages.scales import Scale
from api.pages.words import latency

ROW, LEFT, TOP = 30, 96, 8


@dataclass(frozen=True, slots=True)
class Row:
    """One set of samples, in pixels: the box is the middle half, `median` its line."""

    name: str
    kind: str
    y: float
    low: float
    high: float
    median: float
    says: str


@dataclass(frozen=True, slots=True)
class Boxes:
    """The drawing of one workload."""

    workload: str
    width: int
    height: int
    rows: Sequence[Row]
    ticks: Sequence[tuple[float, str]]
    words: str


def boxes(workload: str, samples: Mapping[str, Sequence[float]], own: Sequence[str], width: int = 340) -> Boxes | None:
    """The samples (µs) by name, those called `own` first and the last of them marked. None without samples."""
    named = [*own, *sorted(set(samples) - set(own))]
    usable = {name: sorted(samples[name]) for name in named if len(samples.get(name, ())) > 1}
    if not usable:
        return None
    quarters = {name: statistics.quantiles(values, n=4) for name, values in usable.items()}
    # From zero, so that lengths can be compared; a few outliers must not squeeze the rest.
    scale = Scale(0, max(each[2] for each in quarters.values()) * 1.08, LEFT, width - 12)
    bottom = TOP + ROW * len(usable)
    rows = [
        Row(
            name,
            "own" if name == own[-1] else "other",
            TOP + ROW * place + ROW / 2,
            scale(low),
            scale(high),
            scale(middle),
            latency(middle),
        )
        for place, (name, (low, middle, high)) in enumerate(quarters.items())
    ]
    ticks = [(scale(tick), _round(tick)) for tick in scale.ticks(4)]
    words = "; ".join(f"{row.name} {row.says}" for row in rows)
    return Boxes(workload, width, bottom + 26, rows, ticks, words)


def _round(tick_us: float) -> str:
    return f"{tick_us / 1e3:g} ms" if tick_us >= 1e3 else f"{tick_us:g} µs" if tick_us else "0"


def of_report(report: Mapping[str, Any] | None, label: str = "candidate") -> list[Boxes]:
    """A drawing for each workload of the judge's report."""
    drawn = []
    for row in (report or {}).get("workloads") or []:
        samples = {label if name == "candidate" else name: each for name, each in (row.get("samples_us") or {}).items()}
        drawn.append(boxes(str(row["name"]), samples, [label]))
    return [each for each in drawn if each is not None]
