"""The judge's verdict in one paragraph: what was tried, found, and is to be kept in mind; figures, no adjectives."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worker.judge.certificate.document import Layer, Outcome, OwnShare, Roofline, TimingPart


def paragraph(
    *,
    name: str,
    hardware: str,
    language: str,
    reason: str,
    layers: Sequence[Layer],
    timing: TimingPart | None,
    roofline: Roofline | None,
    own: OwnShare,
    reservations: Sequence[str],
) -> str:
    """About five sentences."""
    opening = f"This {language} kernel for {name} on {hardware} is"
    verdict = f"{opening} not certified: {reason.rstrip('.')}." if reason else f"{opening} certified."
    parts = [verdict, _checked(layers), _closest(layers), _timed(timing), _light(roofline), _owned(own)]
    if reservations:
        many = "One reservation" if len(reservations) == 1 else f"{len(reservations)} reservations"
        parts.append(f"{many}: {'; '.join(reservations)}.")
    return " ".join(part for part in parts if part)


def _checked(layers: Sequence[Layer]) -> str:
    outcomes = [row.outcome for layer in layers for row in layer.rows]
    made = sum(outcome is not Outcome.NOT_APPLICABLE for outcome in outcomes)
    passed = sum(outcome is Outcome.PASSED for outcome in outcomes)
    left_out = len(outcomes) - made
    tail = f"; {left_out} did not apply here, each with its reason" if left_out else ""
    return f"It passed {passed} of {made} checks in {len(layers)} layers{tail}."


def _closest(layers: Sequence[Layer]) -> str:
    rows = [row for layer in layers if layer.id == "numerics" for row in layer.rows]
    measured = [
        (row.statistic / row.threshold, row)
        for row in rows
        if row.statistic is not None and row.threshold and math.isfinite(row.threshold)
    ]
    if not measured:
        return ""
    share, row = max(measured, key=lambda pair: pair[0])
    sees = sum(str(row.figures.get("sees_precision")) == "True" for _share, row in measured)
    return (
        f"Its largest error against the fp64 truth is {share:.0%} of what is allowed ({row.name}), and {sees} of "
        f"{len(measured)} comparisons can tell honest arithmetic from one precision lower."
    )


def _timed(timing: TimingPart | None) -> str:
    if timing is None:
        return "It was not timed."
    low, high = timing.ci95
    names = ", ".join(sorted({row.baseline for row in timing.workloads}))
    fresh = timing.again.get("speedup")
    again = f" A second measurement in fresh processes gave {fresh:.2f}x." if isinstance(fresh, float) else ""
    return (
        f"Against the fastest baseline of each workload ({names}) it is {timing.speedup:.2f}x as fast (95 % interval "
        f"{low:.2f} to {high:.2f}), on fresh values and cold caches.{again}"
    )


def _light(roofline: Roofline | None) -> str:
    if roofline is None or not roofline.points:
        return ""
    best = max(roofline.points, key=lambda point: point.sol_fraction)
    return f"At its best it reaches {best.sol_fraction:.0%} of the speed of light ({best.name}, {best.bound} bound)."


def _owned(own: OwnShare) -> str:
    if own.share is None:
        return ""
    return f"{own.share:.0%} of the kernel time is spent in its own code (required: {own.required:.0%})."
