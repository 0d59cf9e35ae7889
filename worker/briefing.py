"""Reads what a proposer may know about a candidate to be made: the job, the parents and what was found about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from db import candidates, jobs, workers
from db.admissions import JUDGE_FACT
from db.candidates import CandidateRow
from db.ledger import Claim
from db.models import Candidate, Evaluation, Job, Problem, Work
from db.vocabulary import Failure, Operator, Proposer, WorkKind
from problems.catalog import outline
from search.knowledge.distil import bound_of
from search.proposing import Parent, ProposalRequest, Trial
from search.types import Target
from worker.recalling import hints_for, knowledge_for, winners_for


@dataclass(frozen=True, slots=True)
class Brief:
    """A proposal to be made: by whom, for which job, and the request itself."""

    proposer: str
    hardware: str
    language: str
    builtin_index: int
    """How many built-in seeds the job had before this one: the same on every re-run."""
    request: ProposalRequest


def read_brief(session: Session, claim: Claim, embedder: str | None = None) -> Brief:
    """The brief of the claimed candidate. Raises NoResultFound when a parent is not there."""
    return brief_of(session, claim.candidate, embedder)


def brief_of(session: Session, candidate_id: str, embedder: str | None = None) -> Brief:
    """The brief of a candidate that is to be proposed; what is known is looked up with the vectors of the `embedder`,
    if one is named. Raises NoResultFound when a parent is not there."""
    candidate = session.get_one(Candidate, candidate_id)
    job = jobs.fetch_job(session, candidate.job_id)
    problem = session.get_one(Problem, job.problem_hash)
    facts = workers.device_facts(session, job.hardware)
    request = ProposalRequest(
        problem_name=job.problem_name,
        problem_source=problem.source,
        target=Target(job.hardware, job.language),
        operator=candidate.operator,
        op_family=outline(problem.source, job.problem_name).op_family,
        device={name: fact for name, fact in facts.items() if name != JUDGE_FACT},
        parents=tuple(_parent(session, job, parent_id) for parent_id in candidate.parents),
        trials=tuple(_trials(session, candidate)),
        seed=job.seed + candidate.ordinal,
        ordinal=candidate.ordinal,
        model=candidate.model,
        whole_file=_edit_failed(session, candidate),
    )
    if candidate.proposer != Proposer.BUILTIN:
        bound = _bound(session, candidate)
        request = replace(request, knowledge=knowledge_for(session, job, candidate, request, bound, embedder))
    elif candidate.operator == Operator.TUNE:
        request = replace(request, hints=hints_for(session, job, candidate, request))
    elif candidate.operator == Operator.SEED:
        request = replace(request, hints=winners_for(session, job, _first_builtin_seed(session, job), request))
    index = _builtin_index(session, job, candidate)
    return Brief(candidate.proposer, job.hardware, job.language, index, request)


def _bound(session: Session, candidate: Candidate) -> str:
    """What held the first parent back, where a profile says so."""
    report = session.scalar(select(Evaluation.report).where(Evaluation.candidate_id.in_(candidate.parents[:1])))
    return bound_of(report or {})


def _builtin_index(session: Session, job: Job, candidate: Candidate) -> int:
    earlier = select(func.count()).where(*_builtin_seeds(job), Candidate.ordinal < candidate.ordinal)
    return session.scalar(earlier) or 0


def _first_builtin_seed(session: Session, job: Job) -> Candidate:
    query = select(Candidate).where(*_builtin_seeds(job)).order_by(Candidate.ordinal).limit(1)
    return session.scalars(query).one()


def _builtin_seeds(job: Job) -> tuple[ColumnElement[bool], ...]:
    seeds = Candidate.operator == Operator.SEED.value
    return (Candidate.job_id == job.id, Candidate.proposer == Proposer.BUILTIN.value, seeds)


def _edit_failed(session: Session, candidate: Candidate) -> bool:
    """Whether an edit of the same parents had failed to apply when the candidate was decided on.

    Then the whole file is asked for. What failed later does not count, so that the brief is always the same.
    """
    earlier = (
        select(func.count())
        .select_from(Candidate)
        .join(Work, and_(Work.candidate_id == Candidate.id, Work.kind == WorkKind.PROPOSE.value))
        .where(
            Candidate.job_id == candidate.job_id,
            Candidate.parents == candidate.parents,
            Candidate.failure == Failure.DIFF_FAILED.value,
            Work.finished_at <= candidate.created_at,
        )
    )
    return bool(candidate.parents) and bool(session.scalar(earlier))


def _parent(session: Session, job: Job, parent_id: str) -> Parent:
    row = candidates.get_candidate(session, parent_id)
    if row is None:
        raise LookupError(f"candidate {parent_id} is named as a parent and does not exist")
    parent = _as_parent(row)
    if row.candidate.job_id == job.id:
        return parent
    origin = jobs.fetch_job(session, row.candidate.job_id)
    return replace(parent, target=Target(origin.hardware, origin.language))


def _as_parent(row: CandidateRow) -> Parent:
    found = row.evaluation
    if found is None:
        return Parent(source=row.candidate.source or "", plan=row.candidate.plan, id=row.candidate.id)
    return Parent(
        source=row.candidate.source or "",
        verdict=found.verdict,
        reason=found.reason,
        speedup=found.speedup,
        plan=row.candidate.plan,
        log=found.report.get("log"),
        workloads=tuple(found.report.get("workloads") or ()),
        diagnosis=_diagnosis(found.report),
        id=row.candidate.id,
    )


def _diagnosis(report: Mapping[str, Any]) -> str | None:
    """A profile's words; None for reports without one."""
    profile = report.get("profile")
    text = profile.get("text") if isinstance(profile, Mapping) else None
    return text if isinstance(text, str) and text else None


def _trials(session: Session, candidate: Candidate) -> Sequence[Trial]:
    """The configurations of the parent that other `tune` candidates hold, evaluated or not."""
    if candidate.operator != Operator.TUNE:
        return ()
    query = (
        select(Candidate.params, Evaluation.speedup)
        .outerjoin(Evaluation, Evaluation.candidate_id == Candidate.id)
        .where(
            Candidate.job_id == candidate.job_id,
            Candidate.operator == Operator.TUNE.value,
            Candidate.parents == candidate.parents,
            Candidate.id != candidate.id,
            Candidate.params.is_not(None),
        )
        .order_by(Candidate.ordinal)
    )
    return [Trial(params or {}, speedup) for params, speedup in session.execute(query)]
