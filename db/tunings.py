"""What tuning measured: stored once for each `tune` candidate, found again by the content of its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from db.ids import new_id
from db.models import Candidate, Evaluation, Job
from db.storable import storable_json
from db.tuning_models import Tuning
from db.vocabulary import Operator, Verdict

MAX_REMEMBERED = 50
"""Earlier tunings of the same source that are read: some thousand configurations."""


@dataclass(slots=True)
class NewTuning:
    """What one lease measured. `trials`: params, ratios, verdict, reason; `signatures`: inputs by workload."""

    parent_id: str
    trials: list[Mapping[str, Any]]
    signatures: Mapping[str, Any] = field(default_factory=dict)
    gpu_s: float = 0.0
    wall_s: float = 0.0


def store_tuning(session: Session, candidate_id: str, new: NewTuning) -> None:
    """Keep it and book its device time on the job, in the transaction that settles the candidate's `propose`."""
    candidate = session.get_one(Candidate, candidate_id)
    parent = session.get_one(Candidate, new.parent_id)
    job = session.get_one(Job, candidate.job_id)
    session.add(
        Tuning(
            id=new_id("tune"),
            candidate_id=candidate_id,
            job_id=job.id,
            parent_id=parent.id,
            problem_hash=job.problem_hash,
            hardware=job.hardware,
            source_hash=parent.source_hash or "",
            measured=storable_json({"trials": list(new.trials), "signatures": dict(new.signatures)}),
            gpu_s=new.gpu_s,
            wall_s=new.wall_s,
        )
    )
    session.execute(
        update(Job).where(Job.id == job.id).values(gpu_s=Job.gpu_s + new.gpu_s),
        execution_options={"synchronize_session": False},
    )
    session.flush()


def tunings_of(session: Session, parent_id: str) -> list[Mapping[str, Any]]:
    """What was measured for this candidate's source on this hardware, by this job or another, oldest first."""
    parent = session.get_one(Candidate, parent_id)
    job = session.get_one(Job, parent.job_id)
    query = (
        select(Tuning.measured)
        .where(
            Tuning.problem_hash == job.problem_hash,
            Tuning.hardware == job.hardware,
            Tuning.source_hash == parent.source_hash,
        )
        .order_by(Tuning.created_at.desc(), Tuning.id.desc())
        .limit(MAX_REMEMBERED)
    )
    return list(reversed(session.scalars(query).all()))


def tuning_of(session: Session, candidate_id: str) -> Tuning | None:
    """What was measured for one `tune` candidate."""
    return session.scalars(select(Tuning).where(Tuning.candidate_id == candidate_id)).one_or_none()


def has_child_with_plan(session: Session, job_id: str, parent_id: str, plan: str) -> bool:
    """Whether the job has a candidate from this parent whose plan begins so."""
    query = select(Candidate.id).where(
        Candidate.job_id == job_id, Candidate.parents == [parent_id], Candidate.plan.startswith(plan, autoescape=True)
    )
    return session.scalars(query.limit(1)).one_or_none() is not None


def failed_configurations(session: Session, job_id: str, parent_id: str) -> list[Mapping[str, Any]]:
    """The configurations of this parent that the judge refused in full; a fault of the machine is no refusal."""
    query = (
        select(Candidate.params)
        .join(Evaluation, Evaluation.candidate_id == Candidate.id)
        .where(
            Candidate.job_id == job_id,
            Candidate.operator == Operator.TUNE.value,
            Candidate.parents == [parent_id],
            Candidate.params.is_not(None),
            Evaluation.verdict.not_in([Verdict.OK.value, Verdict.INFRA_ERROR.value]),
        )
    )
    return [params or {} for params in session.scalars(query)]
