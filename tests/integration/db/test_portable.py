"""Which kernels a job may carry over: certified, of the same problem, of another target, and older than the job."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from db import certificates, jobs
from db.models import Job
from db.portable import portable_kernels
from db.vocabulary import StopReason, WorkKind
from tests.support.ledger import claim_kind, evaluate, fresh, make_candidates, make_job, propose

Sessions = sessionmaker[Session]


def champion(sessions: Sessions, hardware: str, language: str, speedup: float, *, certified: bool = True) -> str:
    """A finished job's best, certified or not; its candidate."""
    job = make_job(sessions, hardware=hardware, language=language, certify=True)
    (candidate_id,) = make_candidates(sessions, job, queue=hardware)
    propose(sessions, candidate_id)
    evaluate(sessions, candidate_id, speedup=speedup)
    if certified:
        _certify(sessions, job)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.BUDGET_CANDIDATES)
    return candidate_id


def _certify(sessions: Sessions, job: Job) -> None:
    document: dict[str, Any] = {"certified": True, "verdict": "ok", "reason": "", "sha256": "0" * 64}
    with sessions.begin() as session:
        certificates.enqueue_certify(session, jobs.fetch_job(session, job.id))
    claim = claim_kind(sessions, WorkKind.CERTIFY)
    with sessions.begin() as session:
        certificates.store_certificate(session, claim, document, "page")


def found(sessions: Sessions, job: Job) -> list[str]:
    with sessions.begin() as session:
        return [kernel.candidate_id for kernel in portable_kernels(session, fresh(sessions, job))]


def test_the_best_of_each_other_target_in_the_jobs_language_first(sessions: Sessions) -> None:
    cuda = champion(sessions, "nvidia-h100", "cuda", 9.0)
    champion(sessions, "nvidia-a100", "triton", 1.5)
    best = champion(sessions, "nvidia-a100", "triton", 2.0)
    champion(sessions, "nvidia-l40s", "triton", 3.0, certified=False)
    champion(sessions, "nvidia-h100", "triton", 4.0)
    job = make_job(sessions, hardware="nvidia-h100", language="triton")
    assert found(sessions, job) == [best, cuda]
    champion(sessions, "nvidia-l40s", "triton", 5.0)
    assert found(sessions, job) == [best, cuda], "a job sees the same from beginning to end"
    other = make_job(sessions, hardware="nvidia-h100", problem_hash="another", language="triton")
    assert found(sessions, other) == []
