"""Candidates: add them with their work, store what a proposer made and what the judge found, read the tree.

Each function that ends a unit of work settles it with its token first, so a late writer changes nothing (`Fenced`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import case, cast, func, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.orm import Session

from db import events, jobs, ledger
from db.evaluations import store_evaluation, store_infra_error
from db.ids import new_id
from db.ledger import Claim
from db.listing import CandidateRow, Sort, get_candidate, list_candidates
from db.models import Candidate, Evaluation, Job
from db.storable import storable_json, storable_text
from db.tuning_models import Tuning
from db.vocabulary import CandidateState, EventType, Failure, WorkKind

__all__ = [
    "CandidateRow",
    "NewCandidate",
    "Proposed",
    "Sort",
    "TreeRow",
    "add_candidates",
    "add_cost",
    "get_candidate",
    "list_candidates",
    "load_tree",
    "reject_candidate",
    "reject_duplicate",
    "reject_unsettled",
    "start_evaluation",
    "store_evaluation",
    "store_infra_error",
    "store_proposal",
]


@dataclass(frozen=True, slots=True)
class NewCandidate:
    """A candidate to be made: how, by whom, from what, and on which queue it is proposed."""

    operator: str
    proposer: str
    queue: str
    model: str | None = None
    parents: tuple[str, ...] = ()
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a proposer made. `source_hash` is of the normalised source; `tunable`: it declares parameters to tune."""

    source: str
    source_hash: str
    plan: str | None = None
    params: Mapping[str, Any] | None = None
    tunable: bool = False


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A candidate in the search tree, without its source."""

    id: str
    ordinal: int
    operator: str
    proposer: str
    model: str | None
    parents: tuple[str, ...]
    state: str
    verdict: str | None
    speedup: float | None
    failure: str | None
    params: Mapping[str, Any] | None
    tunable: bool
    source_hash: str | None
    plan: str | None
    cost_usd: Decimal
    gpu_s: float
    sol_fractions: tuple[float, ...]
    """Of the speed of light, for each workload of which the judge knows it."""
    bound: str | None
    """What its profile says holds it back: memory, compute, latency or overhead."""


def add_candidates(session: Session, job: Job, new: Sequence[NewCandidate]) -> list[str]:
    """Insert candidates in state `proposing` with their `propose` work; returns their ids in order."""
    events.lock_job(session, job.id)
    last = session.scalar(select(func.max(Candidate.ordinal)).where(Candidate.job_id == job.id)) or 0
    return [_add(session, job, last + offset, candidate) for offset, candidate in enumerate(new, start=1)]


def _add(session: Session, job: Job, ordinal: int, new: NewCandidate) -> str:
    candidate_id = new_id("cand")
    session.add(
        Candidate(
            id=candidate_id,
            job_id=job.id,
            ordinal=ordinal,
            operator=new.operator,
            proposer=new.proposer,
            model=new.model,
            parents=list(new.parents),
        )
    )
    ledger.enqueue(
        session,
        kind=WorkKind.PROPOSE,
        queue=new.queue,
        job_id=job.id,
        candidate_id=candidate_id,
        priority=job.priority,
        delay_s=new.delay_s,
    )
    data = {
        "candidate_id": candidate_id,
        "ordinal": ordinal,
        "operator": new.operator,
        "proposer": new.proposer,
        "model": new.model,
        "parents": list(new.parents),
    }
    events.append(session, job.id, EventType.CANDIDATE_CREATED, data)
    return candidate_id


def store_proposal(
    session: Session, claim: Claim, proposed: Proposed, *, queue: str, near: tuple[str, float] | None = None
) -> CandidateState:
    """Finish a `propose` with a source: queue its evaluation on `queue`, or reject it as a duplicate.

    A source that an earlier candidate of the job has (normalised) costs no evaluation, nor does one that is `near`
    another (its id, and how alike they are). Raises Fenced.
    """
    candidate = _settle(session, claim)
    candidate.source, candidate.source_hash = storable_text(proposed.source), proposed.source_hash
    candidate.plan = storable_text(proposed.plan) if proposed.plan else None
    candidate.params = storable_json(proposed.params) if proposed.params is not None else None
    candidate.tunable = proposed.tunable
    twin = _twin(session, candidate, proposed.source_hash)
    detail = "the same source as"
    if twin is None and near is not None:
        twin, detail = session.get_one(Candidate, near[0]), f"nearly the same source ({near[1]:.0%} alike) as"
    if twin is not None:
        candidate.duplicate_of = twin.id
        _reject(session, candidate, Failure.DUPLICATE, f"{detail} candidate {twin.ordinal} of this job")
        return CandidateState.REJECTED
    candidate.state = CandidateState.QUEUED.value
    session.flush()
    job = jobs.fetch_job(session, claim.job_id)
    ledger.enqueue(
        session,
        kind=WorkKind.EVALUATE,
        queue=queue,
        job_id=claim.job_id,
        candidate_id=candidate.id,
        priority=job.priority,
    )
    data = {"candidate_id": candidate.id, "ordinal": candidate.ordinal, "plan": candidate.plan}
    events.append(session, claim.job_id, EventType.CANDIDATE_PROPOSED, data)
    jobs.enqueue_advance(session, claim.job_id, priority=job.priority)
    return CandidateState.QUEUED


def reject_duplicate(session: Session, claim: Claim, twin: Candidate, detail: str) -> None:
    """Finish a `propose` or an `evaluate` whose candidate is another one again: it has that one's verdict, and takes no
    device time. Raises Fenced."""
    candidate = _settle(session, claim)
    candidate.duplicate_of = twin.id
    _reject(session, candidate, Failure.DUPLICATE, detail)


def _settle(session: Session, claim: Claim) -> Candidate:
    events.lock_job(session, claim.job_id)
    ledger.settle(session, claim)
    return session.get_one(Candidate, claim.candidate, populate_existing=True)


def _twin(session: Session, candidate: Candidate, digest: str) -> Candidate | None:
    query = select(Candidate).where(
        Candidate.job_id == candidate.job_id,
        Candidate.source_hash == digest,
        Candidate.id != candidate.id,
        Candidate.state != CandidateState.REJECTED.value,
    )
    with session.no_autoflush:
        return session.scalars(query.limit(1)).one_or_none()


def reject_candidate(session: Session, claim: Claim, failure: str, detail: str | None = None) -> None:
    """Finish a `propose` that made no candidate: why in a word, and in a sentence. Raises Fenced."""
    _reject(session, _settle(session, claim), failure, detail)


def reject_unsettled(session: Session, candidate_id: str, failure: str, detail: str | None = None) -> None:
    """Reject a candidate whose `propose` is already dead. The caller holds the job's lock."""
    candidate = session.get_one(Candidate, candidate_id, populate_existing=True)
    if candidate.state == CandidateState.PROPOSING:
        _reject(session, candidate, failure, detail)


def _reject(session: Session, candidate: Candidate, failure: str, detail: str | None) -> None:
    candidate.state = CandidateState.REJECTED.value
    candidate.failure = failure
    candidate.failure_detail = storable_text(detail) if detail else None
    session.flush()
    data = {"candidate_id": candidate.id, "ordinal": candidate.ordinal, "failure": failure, "detail": detail}
    events.append(session, candidate.job_id, EventType.CANDIDATE_REJECTED, data)
    job = jobs.fetch_job(session, candidate.job_id)
    jobs.enqueue_advance(session, job.id, priority=job.priority)


def start_evaluation(session: Session, claim: Claim) -> Candidate:
    """Mark the candidate as evaluating while its work is held. Raises Fenced."""
    events.lock_job(session, claim.job_id)
    ledger.hold(session, claim)
    candidate = session.get_one(Candidate, claim.candidate, populate_existing=True)
    if candidate.state == CandidateState.QUEUED:
        candidate.state = CandidateState.EVALUATING.value
        session.flush()
        data = {"candidate_id": candidate.id, "ordinal": candidate.ordinal}
        events.append(session, claim.job_id, EventType.CANDIDATE_EVALUATING, data)
    return candidate


def add_cost(session: Session, candidate_id: str, cost_usd: Decimal) -> None:
    """Book money on a candidate and on its job. Money that was spent counts, whatever became of the work."""
    candidate = session.get_one(Candidate, candidate_id)
    for table, row_id in ((Candidate, candidate_id), (Job, candidate.job_id)):
        session.execute(
            update(table).where(table.id == row_id).values(cost_usd=table.cost_usd + cost_usd),
            execution_options={"synchronize_session": False},
        )


_IN_FLIGHT: Final = (CandidateState.PROPOSING.value, CandidateState.QUEUED.value, CandidateState.EVALUATING.value)
_GPU_S: Final = func.coalesce(Evaluation.gpu_s, 0.0) + func.coalesce(Tuning.gpu_s, 0.0)
"""Of a candidate in flight it counts as none, so that what an advance saw follows from the events alone."""
_SOL_FRACTIONS: Final = cast(literal("$.workloads[*].sol_fraction ? (@ > 0)"), JSONPATH)


def load_tree(session: Session, job_id: str) -> list[TreeRow]:
    """Every candidate of the job with what was found about it, by ordinal."""
    query = (
        select(
            Candidate.id,
            Candidate.ordinal,
            Candidate.operator,
            Candidate.proposer,
            Candidate.model,
            Candidate.parents,
            Candidate.state,
            Evaluation.verdict,
            Evaluation.speedup,
            Candidate.failure,
            Candidate.params,
            Candidate.tunable,
            Candidate.source_hash,
            Candidate.plan,
            Candidate.cost_usd,
            case((Candidate.state.in_(_IN_FLIGHT), 0.0), else_=_GPU_S).label("gpu_s"),
            func.jsonb_path_query_array(Evaluation.report, _SOL_FRACTIONS, type_=JSONB).label("sol_fractions"),
            Evaluation.report[("profile", "bound")].astext.label("bound"),
        )
        .outerjoin(Evaluation, Evaluation.candidate_id == Candidate.id)
        .outerjoin(Tuning, Tuning.candidate_id == Candidate.id)
        .where(Candidate.job_id == job_id)
        .order_by(Candidate.ordinal)
    )
    rows = session.execute(query).mappings()
    lists = ("parents", "sol_fractions")
    return [TreeRow(**{**row, **{name: tuple(row[name] or ()) for name in lists}}) for row in rows]
