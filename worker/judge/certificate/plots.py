"""The certificate's four drawings, each from the document alone: errors, timings, roofline, training.

A shape or a place says what a colour says, so that print, and readers who see no colours, lose nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from worker.judge.certificate import svg
from worker.judge.certificate.svg import Scale

WIDTH = 1000
_ROW, _LABELS = 19, 280
_MOST_ROWS = 44
"""More comparisons than this are drawn as the worst of each family; the table below has them all."""


def errors(rows: Sequence[Mapping[str, Any]]) -> str:
    """Relative error of every comparison between the honest anchor, the threshold and the reject anchor."""
    chosen = [row for row in rows if _drawable(row)]
    if len(chosen) > _MOST_ROWS:
        chosen = _worst_of_each_family(chosen)
    if not chosen:
        return ""
    figures = [row["figures"] for row in chosen]
    keys = ("error", "accept_error", "threshold", "reject_error")
    values = [number(found[key]) for found in figures for key in keys if key in found]
    smallest = min((value for value in values if value > 0), default=1e-9)
    scale = svg.log_scale([max(value, smallest, 1e-12) for value in values], _LABELS, WIDTH - 30)
    bottom = 30 + _ROW * len(chosen)
    body = svg.grid_x(scale, 24, bottom, "largest relative slice error against fp64 truth")
    for index, row in enumerate(chosen):
        body += _error_row(scale, 24 + _ROW * (index + 0.5) + 3, row)
    described = f"{len(chosen)} comparisons; each dot lies left of its threshold when the comparison passed."
    return svg.figure(WIDTH, bottom + 42, "Error by family against its threshold", described, body)


def _error_row(scale: Scale, y: float, row: Mapping[str, Any]) -> list[str]:
    found = row["figures"]
    error, limit = number(found["error"]), number(found["threshold"])
    accept, reject = number(found.get("accept_error", limit)), number(found.get("reject_error", limit))
    sees = str(found.get("sees_precision", "True")) == "True"
    hint = f"{row['name']}: error {error:.2e}, threshold {limit:.2e}, worst in {found.get('worst_slice', '?')}"
    parts = [svg.text(_LABELS - 12, y + 4, shorten(row["name"], 38), "label", "end")]
    parts.append(svg.rect(scale(accept), y - 3.5, scale(limit) - scale(accept), 7, "allowed"))
    if sees:
        parts += [svg.line(scale(limit), y, scale(reject), y, "reach"), _cross(scale(reject), y)]
    parts.append(svg.line(scale(limit), y - 7, scale(limit), y + 7, "limit" if sees else "limit blind"))
    parts.append(svg.line(scale(accept), y - 5, scale(accept), y + 5, "honest"))
    passed = row["outcome"] != "failed"
    parts.append(svg.circle(scale(error), y, 4.5, "found" if passed else "found bad", hint))
    return parts


def _cross(x: float, y: float) -> str:
    return svg.line(x - 3.5, y - 3.5, x + 3.5, y + 3.5, "reject") + svg.line(
        x - 3.5, y + 3.5, x + 3.5, y - 3.5, "reject"
    )


def timings(workload: Mapping[str, Any]) -> str:
    """Every sample of one workload: the candidate above, baselines below by their medians."""
    samples = {name: [number(value) for value in values] for name, values in workload["samples_us"].items() if values}
    if not samples:
        return ""
    order = sorted(samples, key=lambda name: (name != "candidate", statistics.median(samples[name])))
    most = max(_percentile(values, 0.97) for values in samples.values())
    unit, unit_us = ("milliseconds", 1e3) if most >= 5e3 else ("microseconds", 1.0)
    scale = Scale(0.0, 1.04 * most / unit_us, 190, WIDTH - 130)
    bottom = 22 + 34 * len(order)
    body = svg.grid_x(scale, 14, bottom, f"{unit} a call")
    for index, name in enumerate(order):
        shown = [value / unit_us for value in samples[name]]
        body += _timing_row(scale, 22 + 34 * index + 14, name, shown, unit_us)
    medians = ", ".join(f"{name} {statistics.median(samples[name]):.1f} us" for name in order)
    title = f"Times of workload {workload['name']}"
    return svg.figure(WIDTH, bottom + 40, title, f"Medians: {medians}.", body)


def _timing_row(scale: Scale, y: float, name: str, values: list[float], unit_us: float) -> list[str]:
    own = "own" if name == "candidate" else "other"
    middle, low, high = statistics.median(values), _percentile(values, 0.25), _percentile(values, 0.75)
    parts = [svg.text(178, y + 4, shorten(name, 26), f"label {own}", "end")]
    parts.append(svg.rect(scale(low), y - 9, scale(high) - scale(low), 18, f"box {own}"))
    for index, value in enumerate(
        values
    ):  # spread by a fixed pattern: the page must not change from one run to another
        parts.append(svg.circle(scale(value), y - 8 + (index * 5 % 16) + 0.5, 2.1, f"sample {own}"))
    parts.append(svg.line(scale(middle), y - 12, scale(middle), y + 12, f"median {own}"))
    parts.append(svg.text(WIDTH - 4, y + 4, duration(middle * unit_us), f"value {own}", "end"))
    return parts


def roofline(part: Mapping[str, Any]) -> str:
    """Operations a second over operations a byte, log-log, under the measured roof."""
    points = [point for point in part["points"] if number(point["bytes_moved"]) > 0 and number(point["flops"]) > 0]
    if not points:
        return ""
    slope, flat = number(part["bytes_per_s"]), number(part["flops_per_s"])
    ridge = flat / slope
    places = [
        (number(p["flops"]) / number(p["bytes_moved"]), number(p["flops"]) / number(p["latency_us"]) * 1e6)
        for p in points
    ]
    x = svg.log_scale([ridge / 10, ridge * 10, *(place[0] for place in places)], 70, WIDTH - 190)
    y = svg.log_scale([flat, *(place[1] for place in places), x.low * slope], 330, 34)
    body = svg.grid_x(x, 34, 330, "operations a byte") + svg.grid_y(y, 70, WIDTH - 190, "operations a second")
    start = max(x.low, y.low / slope)
    body.append(svg.path([(x(start), y(start * slope)), (x(ridge), y(flat)), (x(x.high), y(flat))], "roof"))
    body.append(svg.text(WIDTH - 184, y(flat) + 4, f"{flat / 1e12:.3g} T/s {part['precision']}", "axis"))
    middle = math.sqrt(start * ridge)
    body.append(svg.text(x(middle) - 8, y(middle * slope) - 8, f"{slope / 1e9:.3g} GB/s", "axis", "end"))
    taken: list[float] = []
    for point, (across, up) in sorted(zip(points, places, strict=True), key=lambda pair: -pair[1][1]):
        body += _roof_point(x(across), y(up), point, taken)
    described = "; ".join(f"{point['name']}: {number(point['sol_fraction']):.0%} of the roof" for point in points)
    return svg.figure(WIDTH, 372, "Roofline with measured ceilings", described, body)


def _roof_point(x: float, y: float, point: Mapping[str, Any], taken: list[float]) -> list[str]:
    share = number(point["sol_fraction"])
    label_y = y + 4
    while any(abs(label_y - other) < 15 for other in taken):
        label_y += 15
    taken.append(label_y)
    name = f"{shorten(point['name'], 22)}: {share:.0%}"
    return [
        svg.line(x + 6, y, x + 16, label_y - 4, "leader"),
        svg.circle(x, y, 5, "found", f"{point['name']}: {share:.1%} of the roof, {point['bound']} bound"),
        svg.text(x + 19, label_y, name, "label start"),
    ]


def training(run: Mapping[str, Any]) -> str:
    """One optimiser: the candidate's loss over the band of honest variants."""
    steps = [number(step) for step in run.get("steps", [])]
    own, low, high = ([number(v) for v in run.get(key, [])] for key in ("candidate", "null_low", "null_high"))
    if len(steps) < 2 or len(own) != len(steps):
        return ""
    band = len(low) == len(high) == len(steps)
    known = [value for value in (*own, *(low + high if band else [])) if math.isfinite(value)]
    if not known or max(known) <= min(known):
        return ""
    margin = 0.05 * (max(known) - min(known))
    x = Scale(steps[0], steps[-1], 60, WIDTH - 20)
    y = Scale(min(known) - margin, max(known) + margin, 210, 30)
    body = svg.grid_x(x, 30, 210, "step") + svg.grid_y(y, 60, WIDTH - 20, "loss")
    if band:
        upper = [(x(step), y(value)) for step, value in zip(steps, high, strict=True)]
        lower = [(x(step), y(value)) for step, value in zip(steps, low, strict=True)]
        body.append(svg.path([*upper, *reversed(lower)], "band", closed=True))
    finite = [(x(step), y(value)) for step, value in zip(steps, own, strict=True) if math.isfinite(value)]
    body.append(svg.path(finite, "curve"))
    described = f"Loss of the candidate from {own[0]:.3f} to {own[-1]:.3f} over {len(steps)} recorded steps."
    return svg.figure(WIDTH, 252, f"Training with {run.get('name', 'one optimiser')}", described, body)


def number(value: Any) -> float:
    """A figure of the document; `"inf"` and `"nan"` are written as words there."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def duration(value_us: float) -> str:
    """12.3 us, 123 us, or 4.56 ms."""
    if value_us >= 1000:
        return f"{value_us / 1000:.2f} ms"
    return f"{value_us:.1f} us" if value_us < 100 else f"{value_us:.0f} us"


def shorten(name: str, most: int) -> str:
    """The end of a long name says more than its beginning."""
    return name if len(name) <= most else "…" + name[-most + 1 :]


def _drawable(row: Mapping[str, Any]) -> bool:
    found = row["figures"]
    limit = number(found.get("threshold"))  # infinite where special values make every error infinite
    return "error" in found and 0 < limit < math.inf and not math.isnan(number(found["error"]))


def _worst_of_each_family(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    worst: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        family = row["name"].split("/", 1)[-1]
        share = number(row["figures"]["error"]) / number(row["figures"]["threshold"])
        held = worst.get(family)
        if held is None or share > number(held["figures"]["error"]) / number(held["figures"]["threshold"]):
            worst[family] = row
    return list(worst.values())


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
