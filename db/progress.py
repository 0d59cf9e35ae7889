"""How far jobs are: counts by state and by verdict, the best so far, and what was spent on models. One query each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Candidate, Certificate, Evaluation, Job, LlmCall
from db.vocabulary import LlmCallState


@dataclass(frozen=True, slots=True)
class Best:
    """The best verified candidate so far; `speedup` is against the fastest baseline, None when it was not timed."""

    candidate_id: str
    ordinal: int
    operator: str
    proposer: str
    model: str | None
    verdict: str
    timed: bool
    latency_us: float | None
    speedup: float | None
    ci95_low: float | None
    ci95_high: float | None
    baseline: str | None
    certified: bool
    evaluated_at: datetime


@dataclass(frozen=True, slots=True)
class Progress:
    """A job's progress. Candidates that were not evaluated have a state and no verdict."""

    candidates: int = 0
    by_state: Mapping[str, int] = field(default_factory=dict)
    by_verdict: Mapping[str, int] = field(default_factory=dict)
    best: Best | None = None
    llm_calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    unpriced_calls: int = 0
    """Calls that were answered and whose price nobody knows: what they cost is not in any sum."""


def job_progress(session: Session, ids: Sequence[str]) -> dict[str, Progress]:
    """The progress of each of these jobs; a job that does not exist has an empty one."""
    if not ids:
        return {}
    states = _counts_by_state(session, ids)
    verdicts = _counts_by_verdict(session, ids)
    best = _best(session, ids)
    calls = _calls(session, ids)
    return {
        job_id: Progress(
            sum(states[job_id].values()), states[job_id], verdicts[job_id], best.get(job_id), *calls.get(job_id, ())
        )
        for job_id in ids
    }


def _counts_by_state(session: Session, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    query = (
        select(Candidate.job_id, Candidate.state, func.count())
        .where(Candidate.job_id.in_(ids))
        .group_by(Candidate.job_id, Candidate.state)
    )
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for job_id, state, count in session.execute(query):
        counts[job_id][state] = count
    return counts


def _counts_by_verdict(session: Session, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    query = (
        select(Evaluation.job_id, Evaluation.verdict, func.count())
        .where(Evaluation.job_id.in_(ids))
        .group_by(Evaluation.job_id, Evaluation.verdict)
    )
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for job_id, verdict, count in session.execute(query):
        counts[job_id][verdict] = count
    return counts


def _best(session: Session, ids: Sequence[str]) -> dict[str, Best]:
    query = (
        select(
            Job.id,
            Candidate,
            Evaluation,
            Certificate.certified,
            Certificate.speedup,
            Certificate.ci95_low,
            Certificate.ci95_high,
        )
        .join(Candidate, Candidate.id == Job.best_candidate_id)
        .join(Evaluation, Evaluation.candidate_id == Candidate.id)
        .outerjoin(Certificate, Certificate.candidate_id == Candidate.id)
        .where(Job.id.in_(ids))
    )
    return {
        job_id: _best_of(candidate, evaluation, bool(certified), (speedup, low, high))
        for job_id, candidate, evaluation, certified, speedup, low, high in session.execute(query)
    }


def _best_of(
    candidate: Candidate,
    evaluation: Evaluation,
    certified: bool,
    times: tuple[float | None, float | None, float | None],
) -> Best:
    """`times`: the certificate's speedup and interval, which count where there are any."""
    if not certified or times[0] is None:
        times = evaluation.speedup, evaluation.ci95_low, evaluation.ci95_high
    speedup, low, high = times
    return Best(
        candidate_id=candidate.id,
        ordinal=candidate.ordinal,
        operator=candidate.operator,
        proposer=candidate.proposer,
        model=candidate.model,
        verdict=evaluation.verdict,
        timed=evaluation.timed,
        latency_us=evaluation.latency_us,
        speedup=speedup,
        ci95_low=low,
        ci95_high=high,
        baseline=evaluation.baseline,
        certified=certified,
        evaluated_at=evaluation.created_at,
    )


def _calls(session: Session, ids: Sequence[str]) -> dict[str, tuple[int, int, int, int]]:
    query = (
        select(
            LlmCall.job_id,
            func.count(),
            func.sum(LlmCall.tokens_in),
            func.sum(LlmCall.tokens_out),
            func.count().filter(LlmCall.cost_usd.is_(None), LlmCall.error.is_(None)),
        )
        .where(LlmCall.job_id.in_(ids), LlmCall.state != LlmCallState.STARTED.value)
        .group_by(LlmCall.job_id)
    )
    return {row[0]: (row[1], row[2] or 0, row[3] or 0, row[4]) for row in session.execute(query)}
