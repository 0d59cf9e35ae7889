"""Candidates on the wire: one line of a list, and the whole with source and report."""

from __future__ import annotations

from typing import Any

from api.schemas import Resource, Usd, UtcTime
from db.vocabulary import CandidateState, CodeKind, Operator, Proposer, Verdict


class Candidate(Resource):
    """Where a candidate came from, where it is (`state`) and what was found (`verdict`, null until it was judged)."""

    id: str
    job_id: str
    ordinal: int
    operator: Operator
    proposer: Proposer
    model: str | None
    parents: list[str]
    plan: str | None
    params: dict[str, Any] | None
    state: CandidateState
    failure: str | None
    failure_detail: str | None
    duplicate_of: str | None
    """The candidate that this one is again: its verdict holds for both, and no device time was spent on this one."""
    cost_usd: Usd
    created_at: UtcTime
    verdict: Verdict | None
    reason: str | None
    timed: bool | None
    latency_us: float | None
    speedup: float | None
    ci95: tuple[float, float] | None
    baseline: str | None
    evaluated_at: UtcTime | None
    links: dict[str, str]


class Duplicate(Resource):
    """What is known of the candidate that this one is again; null where it is not judged yet."""

    candidate_id: str
    ordinal: int
    verdict: Verdict | None
    speedup: float | None


class TuningRecord(Resource):
    """What a `tune` measured before its best configuration became this candidate: how many configurations, and each
    one's parameters, verdict and ratios (how much faster than the parent, by workload)."""

    configurations: int
    gpu_s: float
    wall_s: float
    trials: list[dict[str, Any]]


class GeneratedCode(Resource):
    """A kind of generated code that is kept; the text is under the link of that name."""

    kind: CodeKind
    bytes: int
    sha256: str
    """Candidates with equal digests run the same code."""


class CandidateDetail(Candidate):
    """With the source and the judge's whole report: checks, workloads, samples, profile, environment, log."""

    source: str | None
    report: dict[str, Any] | None
    duplicate: Duplicate | None
    tuning: TuningRecord | None
    code: list[GeneratedCode]


class CandidatePage(Resource):
    data: list[Candidate]
    next_cursor: str | None
    has_more: bool
