"""The record in three plots, as SVG by matplotlib: it is no dependency of the project, and without it there are tables.

    speedup.svg       each operator's speedup after dispatch, and its kernel alone with the 95 % interval
    roofline.svg      every workload of every certified kernel under the ceilings that its certificate measured
    best-so-far.svg   how each job's best speedup grew by candidates judged

They are drawn of the result files that the tables are made of, and the same files give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.record.results import Document, Result, missing, not_run, read_documents, read_results, roofs

_BLUE, _ORANGE, _GREEN, _BLACK, _GREY = "#0072B2", "#D55E00", "#009E73", "#000000", "#767676"
_DARK: Final = "#444444"
"""Of Okabe and Ito's palette, which those who confuse colours tell apart; forms tell the same."""
_WIDTH: Final = 8.0
"""Inches: on a page 800 pixels wide letters of 9 points are as large as its text."""
_BOUNDS: Final = (("memory", _BLUE, "o"), ("compute", _ORANGE, "s"))
_LANGUAGES: Final = (("triton", _BLUE, "o"), ("cuda", _ORANGE, "s"), ("cpp", _GREEN, "^"))
_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class Curve:
    """One job by candidates judged."""

    language: str
    best: tuple[float | None, ...]
    """The best speedup so far; None: nothing was accepted by then."""
    accepted: tuple[bool, ...]


def draw(results: Path, folder: Path) -> list[Path]:
    """Draw what there is of a folder of results. Raises ImportError without matplotlib."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    style = {"svg.hashsalt": "kernelwright", "font.size": 9, "axes.spines.right": False, "axes.spines.top": False}
    matplotlib.rcParams.update(style)
    documents, found = read_documents(results), read_results(results)
    if not documents:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    without = missing(results, found)
    drawn = [_speedups(found, without, len(not_run(results)), folder / "speedup.svg")] if found else []
    certified = [each for each in _flat(documents.values()) if (each.get("certificate") or {}).get("certified")]
    if any(roofs(each) for each in certified):
        drawn.append(_roofline(certified, folder / "roofline.svg"))
    curves = {name: [curve for each in documents[name] if (curve := curve_of(each)).best] for name in documents}
    if any(curves.values()):
        drawn.append(_best_so_far({name: each for name, each in curves.items() if each}, folder / "best-so-far.svg"))
    return drawn


def curve_of(document: Document) -> Curve:
    """A job's candidates in the order in which they were judged. Faults of the machine are no candidate's."""
    judged = [each for each in document["candidates"] if each["verdict"] not in (None, "infra_error")]
    judged.sort(key=lambda each: (each["evaluated_at"] or "", each["ordinal"]))
    best: list[float | None] = []
    for each in judged:
        now = each["speedup"] if each["verdict"] == "ok" else None
        best.append(max((value for value in (now, *best[-1:]) if value is not None), default=None))
    accepted = tuple(each["verdict"] == "ok" for each in judged)
    return Curve(document["job"]["target"]["language"], tuple(best), accepted)


def _speedups(results: Sequence[Result], without: Sequence[str], unseen: int, path: Path) -> Path:
    """Bars begin at 1x, the fastest baseline: that is what dispatch falls back to."""
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    ranked = sorted(results, key=lambda each: (each.dispatched, each.problem))
    names = [*without, *(each.problem for each in ranked)]
    figure, axes = plt.subplots(figsize=(_WIDTH, 1.2 + 0.23 * len(names)), layout="constrained")
    _bars(axes, ranked, len(without))
    for place in range(len(without)):
        axes.annotate("no kernel", (1.0, place), (4, 0), textcoords="offset points", va="center", color=_GREY)
    for value, line in ((1.0, "-"), (2.0, "--")):
        axes.axvline(value, color=_GREY, linewidth=0.9, linestyle=line, zorder=1)
    low = min([0.9, *(each.ci95[0] for each in ranked)])
    high = max([2.2, *(max(each.ci95[1], each.dispatched) for each in ranked)])
    _log_ticks(axes, axes.xaxis, low / 1.1, high * 1.1)
    axes.set_xlim(low / 1.1, high * 1.1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel("speedup over the fastest baseline of each workload, geometric mean over workloads")
    _legend(figure, f"{len(names)} of {len(names) + unseen} operators", *axes.get_legend_handles_labels())
    return _saved(figure, path)


def _bars(axes: Any, ranked: Sequence[Result], below: int) -> None:
    looks = {True: {"color": _BLUE}, False: {"facecolor": "white", "edgecolor": _BLUE}}
    for certified, look in looks.items():
        chosen = [(place, each) for place, each in enumerate(ranked, below) if each.certified is certified]
        if chosen:
            label = "after dispatch, certified" if certified else "after dispatch, not certified"
            widths = [each.dispatched - 1.0 for _place, each in chosen]
            axes.barh([place for place, _each in chosen], widths, left=1.0, height=0.62, label=label, zorder=2, **look)
    places = range(below, below + len(ranked))
    spread = [
        [max(0.0, each.speedup - each.ci95[0]) for each in ranked],
        [max(0.0, each.ci95[1] - each.speedup) for each in ranked],
    ]
    mark = {"fmt": "D", "markersize": 3.6, "linewidth": 1.0, "capsize": 2.0, "color": _BLACK, "zorder": 3}
    alone = [each.speedup for each in ranked]
    axes.errorbar(alone, places, xerr=spread, label="kernel alone, 95 % interval", **mark)


def _roofline(documents: Sequence[Document], path: Path) -> Path:
    """Two charts: where a workload has less than an operation a byte, only bytes a second say how good it is. Without
    a matrix product certificates count one operation for each element of the outputs, or twelve for all that sampling
    returns: on the axes of a roofline that would be five empty decades."""
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    rooflines = [each["certificate"]["roofline"] for each in documents if roofs(each)]
    points = [point for each in rooflines for point in each["points"] if point["bytes_moved"] > 0]
    dense = [point for point in points if point["flops"] >= point["bytes_moved"]]
    sparse = [point for point in points if point["flops"] < point["bytes_moved"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(_WIDTH, 4.6), layout="constrained")
    _scatter(left, dense, lambda point: point["flops"] / point["bytes_moved"], "flops")
    _scatter(right, sparse, lambda point: point["bytes_moved"], "bytes_moved")
    _roof(left, rooflines, [point["flops"] / point["bytes_moved"] for point in dense])
    slopes = [each["bytes_per_s"] for each in rooflines]
    right.axhspan(min(slopes), max(slopes), color=_GREY, alpha=0.5, linewidth=1.0, zorder=1)
    _words(right, f"memory {_between(slopes, 1e12)} TB/s", (right.get_xlim()[0], max(slopes)), "left")
    left.set(xlabel="operations a byte", ylabel="operations a second")
    left.set_title("at least one operation a byte", fontsize=9, loc="left")
    right.set(xlabel="bytes a call", ylabel="bytes a second", ylim=(_floor(right, max(slopes)), 2 * max(slopes)))
    right.set_title("fewer: bandwidth alone", fontsize=9, loc="left")
    marks = [plt.Line2D([], [], linestyle="", color=colour, marker=form, markersize=5) for _b, colour, form in _BOUNDS]
    names = [f"the {bound} ceiling is the nearer" for bound, _colour, _form in _BOUNDS]
    _legend(figure, f"{len(points)} workloads of {len(rooflines)} certified kernels", marks, names)
    said = (
        "Operations: the matrix products of the reference, else one for each element of the outputs. Bytes: inputs, "
        "parameters and outputs once each.\nBoth are the least there is to do. Ceilings: a copy and a matrix product, "
        "measured for each certificate in the widest type of its outputs."
    )
    figure.supxlabel(said, x=0.01, ha="left", fontsize=7, color=_DARK)
    return _saved(figure, path)


def _scatter(axes: Any, points: Sequence[Mapping[str, Any]], across: Callable[[Any], float], what: str) -> None:
    """Every point at `what` a second."""
    axes.set(xscale="log", yscale="log")
    for bound, colour, form in _BOUNDS:
        chosen = [point for point in points if point["bound"] == bound]
        up = [point[what] / point["latency_us"] * 1e6 for point in chosen]
        look = {"s": 20, "marker": form, "color": colour, "alpha": 0.75, "linewidths": 0, "zorder": 3}
        axes.scatter([across(point) for point in chosen], up, **look)


def _roof(axes: Any, rooflines: Sequence[Mapping[str, Any]], intensities: Sequence[float]) -> None:
    """Bands from the lowest to the highest that the certificates measured; a compute ceiling for each type."""
    slopes = [each["bytes_per_s"] for each in rooflines]
    flats: dict[str, list[float]] = {}
    for each in rooflines:
        flats.setdefault(each["precision"], []).append(each["flops_per_s"])
    ridges = {precision: max(flat) / max(slopes) for precision, flat in flats.items()}
    right, top = 40 * max([*intensities, *ridges.values()]), max(ridges.values())
    look = {"color": _GREY, "alpha": 0.5, "linewidth": 1.0, "zorder": 1}
    axes.fill_between([1.0, top], [min(slopes), top * min(slopes)], [max(slopes), top * max(slopes)], **look)
    _words(axes, "memory", (math.sqrt(top), math.sqrt(top) * max(slopes)), "right")
    for precision, flat in sorted(flats.items()):
        axes.fill_between([ridges[precision], right], [min(flat)] * 2, [max(flat)] * 2, **look)
        _words(axes, f"{precision}\n{_between(flat, 1e12)} T/s", (right, max(flat)), "right")
    axes.set_xlim(1.0, right)


def _floor(axes: Any, ceiling: float) -> float:
    """Two decades are seen at least: of less the ticks of a logarithmic axis say little."""
    return float(min(axes.get_ylim()[0], ceiling / 100))


def _words(axes: Any, words: str, place: tuple[float, float], side: str) -> None:
    away = (-6, 3) if side == "right" else (2, 3)
    axes.annotate(words, place, away, textcoords="offset points", ha=side, fontsize=8, color=_DARK)


def _between(values: Sequence[float], unit: float) -> str:
    low, high = (f"{value / unit:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _best_so_far(curves: Mapping[str, Sequence[Curve]], path: Path) -> Path:
    """A small chart for each operator, all on the same axes: a mark for each candidate, a cross below for what was not
    accepted."""
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    rows = math.ceil(len(curves) / _COLUMNS)
    size, shared = (_WIDTH, 1.0 + 1.05 * rows), {"sharex": True, "sharey": True, "squeeze": False}
    figure, grid = plt.subplots(rows, _COLUMNS, figsize=size, layout="constrained", **shared)
    places = list(grid.flat)
    most = max(len(curve.best) for each in curves.values() for curve in each)
    values = [value for each in curves.values() for curve in each for value in curve.best if value is not None]
    low, high = min([0.9, *values]) / 1.3, max([2.2, *values]) * 1.25
    for axes, (name, jobs) in zip(places, curves.items(), strict=False):
        for curve in jobs:
            _curve(axes, curve, low * 1.15)
        axes.axhline(1.0, color=_GREY, linewidth=0.8, zorder=1)
        axes.set_title(name if len(name) < 30 else f"{name[:28]}...", fontsize=7, loc="left", pad=3)
        axes.set(yscale="log", ylim=(low, high), xlim=(0.5, most + 0.5))
        axes.tick_params(labelsize=7)
    for axes in places:
        _log_ticks(axes, axes.yaxis, low, high)
        axes.set_xticks(_whole_steps(most))
    for axes in places[len(curves) :]:
        axes.set_visible(False)
    _x_labels_below(places, len(curves))
    judged = [len(curve.best) for each in curves.values() for curve in each]
    several = sum(count > 1 for count in judged)
    words = f"Best so far: {len(judged)} jobs, {several} of them with more than one candidate"
    figure.supylabel("speedup, kernel alone", fontsize=9)
    figure.supxlabel("candidates judged", fontsize=9)
    used = {curve.language for each in curves.values() for curve in each}
    known = [(name, colour, form) for name, colour, form in _LANGUAGES if name in used]
    marks = [plt.Line2D([], [], color=colour, marker=form, markersize=4) for _name, colour, form in known]
    names = [name for name, _colour, _form in known]
    if not all(all(curve.accepted) for each in curves.values() for curve in each):
        marks.append(plt.Line2D([], [], linestyle="", color=_BLACK, marker="x", markersize=4))
        names.append("not accepted")
    _legend(figure, words, marks, names)
    return _saved(figure, path)


def _curve(axes: Any, curve: Curve, bottom: float) -> None:
    _name, colour, form = next(one for one in _LANGUAGES if one[0] == curve.language)
    known = [(place, value) for place, value in enumerate(curve.best, 1) if value is not None]
    if known:
        marked = [index for index, (place, _value) in enumerate(known) if curve.accepted[place - 1]]
        look = {"color": colour, "marker": form, "markevery": marked, "markersize": 3.2, "linewidth": 1.3}
        axes.step(*zip(*known, strict=True), where="post", zorder=3, **look)
    refused = [place for place, accepted in enumerate(curve.accepted, 1) if not accepted]
    axes.plot(refused, [bottom] * len(refused), linestyle="", marker="x", markersize=4, color=colour, zorder=2)


def _x_labels_below(places: Sequence[Any], used: int) -> None:
    """Charts that have none below them show the numbers of the axis that they share."""
    for axes in places[max(0, used - _COLUMNS) : used]:
        axes.tick_params(labelbottom=True)


def _whole_steps(most: int) -> list[int]:
    step = max(1, math.ceil(most / 5))
    return list(range(1, most + 1, step))


def _log_ticks(axes: Any, axis: Any, low: float, high: float) -> None:
    from matplotlib.ticker import (  # type: ignore[import-not-found,unused-ignore]
        FixedLocator,
        FuncFormatter,
        NullLocator,
    )

    axes.set(**{f"{axis.axis_name}scale": "log"})
    usual = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    axis.set_major_locator(FixedLocator([value for value in usual if low <= value <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}x"))
    axis.set_minor_locator(NullLocator())


def _legend(figure: Any, title: str, marks: Sequence[Any], names: Sequence[str]) -> None:
    """Above the charts, under what they are of."""
    where = {"loc": "outside upper left", "alignment": "left", "ncols": len(names), "frameon": False}
    figure.legend(marks, names, title=title, title_fontsize=10, fontsize=8, **where)


def _flat(lists: Iterable[Sequence[Document]]) -> list[Document]:
    return [each for one in lists for each in one]


def _saved(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
