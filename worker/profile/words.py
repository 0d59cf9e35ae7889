"""A profile in words: short, with numbers, one thing first. What a prompt shows and a person reads."""

from __future__ import annotations

from typing import Any

from worker.profile.diagnosis import Diagnosis
from worker.profile.findings import Finding
from worker.profile.roofline import RoofPoint
from worker.profile.rungs import Seen

MAX_TEXT = 1_800
"""Characters: about 450 tokens."""
_MAX_WHY = 90


def sentence(finding: Finding) -> str:
    """What was seen, how much of the time it explains, and what it calls for."""
    return f"{finding.words} (up to {finding.share:.0%} of the time). It calls for: {finding.remedy}."


def text(point: RoofPoint, diagnosis: Diagnosis, seen: Seen) -> str:
    """Two lines for those in a hurry (where it stands, the bottleneck), then what may come next, and the rung."""
    lines = [
        f"Workload {point.workload}: {point.latency_us:.4g} us{_light(point)}. Bound: {diagnosis.primary.bound}.",
        f"Bottleneck: {sentence(diagnosis.primary)}",
    ]
    lines += [f"Later: {sentence(finding)}" for finding in diagnosis.deferred]
    if seen.missed:
        lines.append(f"Not vectorised by g++: {'; '.join(seen.missed)}.")
    lines.append(rung(seen))
    return "\n".join(lines)[:MAX_TEXT]


def rung(seen: Seen) -> str:
    """Where the figures come from, and why from no better place."""
    refused = [f"{name}: {why[:_MAX_WHY]}" for name, why in seen.refused.items()]
    return f"Measured at rung {str(seen.rung)!r}{' (' + '; '.join(refused) + ')' if refused else ''}."


def roof(point: RoofPoint) -> dict[str, Any]:
    """One workload's place below the roof, as JSON."""
    return {
        "bound": str(point.bound),
        "memory_share": round(point.memory_share, 4),
        "compute_share": round(point.compute_share, 4),
        "sol_fraction": point.sol_fraction,
    }


def _light(point: RoofPoint) -> str:
    return "" if point.sol_fraction is None else f", {point.sol_fraction:.0%} of this device's speed of light"
