"""What a new candidate is compared with before it may have the device."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import Candidate, Evaluation
from db.vocabulary import Verdict


def built_twin(session: Session, candidate: Candidate, artefact_hash: str) -> Candidate | None:
    """The candidate of the same job that was built into the same and judged; an infra_error is no judgement."""
    query = (
        select(Candidate)
        .join(Evaluation, Evaluation.candidate_id == Candidate.id)
        .where(
            Candidate.job_id == candidate.job_id,
            Candidate.artefact_hash == artefact_hash,
            Candidate.id != candidate.id,
            Evaluation.verdict != Verdict.INFRA_ERROR.value,
        )
        .order_by(Candidate.ordinal)
    )
    return session.scalars(query.limit(1)).one_or_none()


def accepted_sources(session: Session, job_id: str) -> dict[str, str]:
    """The sources of the job's accepted candidates by id: what something new must differ from."""
    query = (
        select(Candidate.id, Candidate.source)
        .join(Evaluation, Evaluation.candidate_id == Candidate.id)
        .where(Candidate.job_id == job_id, Evaluation.verdict == Verdict.OK.value)
        .order_by(Candidate.ordinal)
    )
    return {row.id: row.source or "" for row in session.execute(query)}
