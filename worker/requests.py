"""From rows to what the judge is asked about a candidate: the same for its evaluation and for its certificate."""

from __future__ import annotations

from sqlalchemy.orm import Session

from db.judging import judge_seed
from db.models import Candidate, Job, Problem
from worker.judge.report import EvaluationRequest


def judge_request(session: Session, job: Job, candidate: Candidate) -> EvaluationRequest:
    """The candidate, its problem and the job's policy."""
    problem = session.get_one(Problem, job.problem_hash)
    return EvaluationRequest(
        candidate_id=candidate.id,
        candidate_source=candidate.source or "",
        problem_name=job.problem_name,
        problem_source=problem.source,
        hardware=job.hardware,
        language=job.language,
        seed=judge_seed(job),
        own_kernel_share=job.own_kernel_share,
    )
