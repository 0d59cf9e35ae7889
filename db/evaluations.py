"""Evaluations: what the judge found, stored exactly once for each candidate, with what follows for the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import bindparam, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from db import events, generated, jobs, ledger
from db.ids import new_id
from db.ledger import Claim, Fenced
from db.models import Candidate, Evaluation, Job
from db.storable import storable_json, storable_text
from db.vocabulary import CandidateState, EventType, Verdict

_STORE_EVALUATION: Final = ledger.SQL["store_evaluation"].bindparams(
    bindparam("report", type_=JSONB), bindparam("environment", type_=JSONB)
)


def store_evaluation(session: Session, claim: Claim, report: Mapping[str, Any], *, worker_id: str | None = None) -> str:
    """Finish an `evaluate` with the judge's report; returns the evaluation's id.

    The work is finished and the evaluation inserted in one statement; the job's GPU seconds and best follow in the same
    transaction, and the generated code, which is no part of the report that is kept. Raises Fenced, and ValueError for
    a verdict that is not in the vocabulary.
    """
    events.lock_job(session, claim.job_id)
    kept = dict(report)
    code = kept.pop("code", {})
    values = _evaluation_values(kept) | {
        "id": new_id("eval"),
        "work_id": claim.id,
        "token": claim.token,
        "worker_id": worker_id,
    }
    evaluation_id: str | None = session.execute(_STORE_EVALUATION, values).scalar_one_or_none()
    if evaluation_id is None:
        raise Fenced
    generated.store(session, claim.candidate, code)
    _after_evaluation(session, claim.candidate, session.get_one(Evaluation, evaluation_id))
    return evaluation_id


def store_infra_error(session: Session, candidate_id: str, reason: str) -> None:
    """Give a candidate whose `evaluate` is dead its one evaluation: `infra_error`. The caller holds the job's lock."""
    candidate = session.get_one(Candidate, candidate_id, populate_existing=True)
    if candidate.state not in {CandidateState.QUEUED, CandidateState.EVALUATING}:
        return
    evaluation = Evaluation(
        id=new_id("eval"),
        candidate_id=candidate_id,
        job_id=candidate.job_id,
        verdict=Verdict.INFRA_ERROR.value,
        reason=storable_text(reason),
        report={},
        environment={},
    )
    session.add(evaluation)
    session.flush()
    session.refresh(evaluation)
    _after_evaluation(session, candidate_id, evaluation)


def _evaluation_values(report: Mapping[str, Any]) -> dict[str, Any]:
    clean: dict[str, Any] = storable_json(report)
    low, high = clean.get("ci95") or (None, None)
    return {
        "verdict": Verdict(clean["verdict"]).value,
        "reason": clean.get("reason"),
        "timed": bool(clean.get("timed")),
        "latency_us": clean.get("latency_us"),
        "speedup": clean.get("speedup"),
        "ci95_low": low,
        "ci95_high": high,
        "baseline": clean.get("baseline"),
        "report": clean,
        "gpu_s": float(clean.get("gpu_s") or 0),
        "wall_s": float(clean.get("wall_s") or 0),
        "environment": clean.get("environment") or {},
    }


def _after_evaluation(session: Session, candidate_id: str, evaluation: Evaluation) -> None:
    candidate = session.get_one(Candidate, candidate_id, populate_existing=True)
    candidate.state = CandidateState.EVALUATED.value
    session.flush()
    job = jobs.fetch_job(session, candidate.job_id)
    session.execute(
        update(Job).where(Job.id == job.id).values(gpu_s=Job.gpu_s + evaluation.gpu_s),
        execution_options={"synchronize_session": False},
    )
    data = {
        "candidate_id": candidate.id,
        "ordinal": candidate.ordinal,
        "verdict": evaluation.verdict,
        "reason": evaluation.reason,
        "speedup": evaluation.speedup,
        "latency_us": evaluation.latency_us,
    }
    events.append(session, job.id, EventType.CANDIDATE_EVALUATED, data)
    if _improves(job, evaluation):
        _crown(session, job, candidate, evaluation)
    jobs.enqueue_advance(session, job.id, priority=job.priority)


def _improves(job: Job, evaluation: Evaluation) -> bool:
    """Verified beats none, timed beats untimed, faster beats slower; a tie goes to the first."""
    if evaluation.verdict != Verdict.OK:
        return False
    if job.best_candidate_id is None:
        return True
    return evaluation.speedup is not None and (job.best_speedup is None or evaluation.speedup > job.best_speedup)


def _crown(session: Session, job: Job, candidate: Candidate, evaluation: Evaluation) -> None:
    values = {"best_candidate_id": candidate.id, "best_speedup": evaluation.speedup}
    session.execute(
        update(Job).where(Job.id == job.id).values(**values), execution_options={"synchronize_session": False}
    )
    data = {"candidate_id": candidate.id, "ordinal": candidate.ordinal, "speedup": evaluation.speedup}
    events.append(session, job.id, EventType.JOB_IMPROVED, data)
