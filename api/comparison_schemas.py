"""Two candidates side by side, on the wire."""

from __future__ import annotations

from typing import Any

from api.candidate_schemas import Candidate
from api.schemas import Resource


class Ratio(Resource):
    """How many times faster the second is than the first, by their speedups over their baselines.

    The interval reaches from one's low end against the other's high end to the opposite: it is wider than 95 % needs.
    `clear` says that 1 is outside. Without the intervals of both it is null, and nothing is clear.
    """

    value: float
    low: float | None
    high: float | None
    clear: bool


class Timing(Resource):
    """One candidate on one workload; the speedup is against that workload's fastest baseline, which is named."""

    latency_us: float | None
    speedup: float | None
    ci95: tuple[float, float] | None
    baseline: str | None
    sol_fraction: float | None


class WorkloadPair(Resource):
    """Both on one workload; null where it was not timed for one of them."""

    name: str
    first: Timing | None
    second: Timing | None
    ratio: Ratio | None


class Comparison(Resource):
    """The first candidate and the second. Without a ratio, `notes` says why there is none.

    `environment` holds what differs between the machines as they were judged: the first's value and the second's.
    `diff` is a unified diff from the first source to the second, null where one has no source or both are very long.
    """

    first: Candidate
    second: Candidate
    ratio: Ratio | None
    workloads: list[WorkloadPair]
    environment: dict[str, tuple[Any, Any]]
    notes: list[str]
    diff: str | None
