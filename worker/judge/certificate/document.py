"""The certificate as data: frozen parts, plain JSON, and a hash over all of it.

The document is the evidence; the page (`worker.judge.certificate.render`) is made from the document alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "kernelwright.certificate/1"


class Outcome(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    """The candidate is not certified."""
    RESERVATION = "reservation"
    """Worth knowing before production, and no reason to refuse: the check did not pass or could not be run."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Subject:
    """What was judged."""

    id: str
    language: str
    sha256: str
    """Of the source's UTF-8 bytes."""
    source: str


@dataclass(frozen=True, slots=True)
class ProblemPart:
    """What it was judged against."""

    name: str
    sha256: str
    workloads: tuple[dict[str, Any], ...]
    """Name, parameters, and shape and dtype of every input, per workload."""


@dataclass(frozen=True, slots=True)
class Row:
    """One check with the figure that decided it."""

    name: str
    outcome: Outcome
    statistic: float | None = None
    threshold: float | None = None
    unit: str = ""
    detail: str = ""
    figures: Mapping[str, float | str] = field(default_factory=dict)
    """Everything the check noted down, units in the names."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Checks of one kind."""

    id: str
    title: str
    catches: str
    """What this layer is there to catch, in a phrase."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class WorkloadTime:
    """One workload's times. Speedups are baseline over candidate."""

    name: str
    latency_us: float
    baselines_us: Mapping[str, float]
    baseline: str
    speedup: float
    ci95: tuple[float, float]
    samples_us: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class TimingPart:
    """All timings, and what the second, fresh measurement gave."""

    speedup: float
    """The certified figure: the smaller of the two measurements."""
    ci95: tuple[float, float]
    speedups: Mapping[str, float]
    workloads: tuple[WorkloadTime, ...]
    control: Mapping[str, float | str] = field(default_factory=dict)
    """The A/A control: the reference against itself, where this judge made one."""
    again: Mapping[str, float | str] = field(default_factory=dict)
    """The fresh-process measurement: its speedup and interval."""


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """One workload on the roofline."""

    name: str
    bytes_moved: float
    flops: float
    latency_us: float
    floor_us: float
    """The least time that the measured ceilings allow for these bytes and operations."""
    sol_fraction: float
    bound: str
    """`memory` or `compute`: which ceiling is the nearer."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured ceilings of the device, and where each workload lies below them."""

    bytes_per_s: float
    flops_per_s: float
    precision: str
    points: tuple[RoofPoint, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class OwnShare:
    """How much of the device time is spent in the candidate's own kernels."""

    share: float | None
    required: float
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Certificate:
    """One finalist's evidence. `sha256` covers everything else."""

    issued_at: str
    """UTC, ISO 8601."""
    certified: bool
    verdict: str
    reason: str
    """Why it is refused; empty when it is certified."""
    summary: str
    """The judge's verdict in words."""
    reservations: tuple[str, ...]
    candidate: Subject
    problem: ProblemPart
    hardware: str
    layers: tuple[Layer, ...]
    timing: TimingPart | None
    roofline: Roofline | None
    own_kernels: OwnShare
    dynamics: Mapping[str, Any] | None
    environment: Mapping[str, Any]
    judge: Mapping[str, Any]
    """Hash of the judge's code, seconds spent."""
    provenance: Mapping[str, str]
    """For each group of figures: who measured it, and how."""
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The document, hash included; only finite numbers, so that every JSON reader takes it."""
        body = plain(asdict(self))
        return {**body, "sha256": document_hash(body)}


def document_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces, UTF-8) of everything but the hash itself."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def is_intact(document: Mapping[str, Any]) -> bool:
    """Whether a document is what its hash says."""
    return document.get("sha256") == document_hash(document)


def plain(value: Any) -> Any:
    """`value` as JSON holds it: lists, string keys, and `"inf"`, `"-inf"`, `"nan"` for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)
