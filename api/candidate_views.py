"""From candidate rows to candidate resources."""

from __future__ import annotations

from typing import Any

from api.candidate_schemas import Candidate, CandidateDetail
from api.job_views import ci95
from db.listing import CandidateRow
from db.models import Evaluation


def candidate_view(row: CandidateRow) -> Candidate:
    """The resource of a list."""
    return Candidate.model_validate(_fields(row))


def candidate_detail(row: CandidateRow) -> CandidateDetail:
    """The resource with source and report."""
    report = row.evaluation.report if row.evaluation else None
    return CandidateDetail.model_validate(_fields(row) | {"source": row.candidate.source, "report": report})


def _fields(row: CandidateRow) -> dict[str, Any]:
    candidate = row.candidate
    return {
        "id": candidate.id,
        "job_id": candidate.job_id,
        "ordinal": candidate.ordinal,
        "operator": candidate.operator,
        "proposer": candidate.proposer,
        "model": candidate.model,
        "parents": candidate.parents,
        "plan": candidate.plan,
        "params": candidate.params,
        "state": candidate.state,
        "failure": candidate.failure,
        "failure_detail": candidate.failure_detail,
        "duplicate_of": candidate.duplicate_of,
        "cost_usd": candidate.cost_usd,
        "created_at": candidate.created_at,
        "links": _links(candidate.id, candidate.job_id),
        **_found(row.evaluation),
    }


def _found(evaluation: Evaluation | None) -> dict[str, Any]:
    return {
        "verdict": evaluation.verdict if evaluation else None,
        "reason": evaluation.reason if evaluation else None,
        "timed": evaluation.timed if evaluation else None,
        "latency_us": evaluation.latency_us if evaluation else None,
        "speedup": evaluation.speedup if evaluation else None,
        "ci95": ci95(evaluation.ci95_low, evaluation.ci95_high) if evaluation else None,
        "baseline": evaluation.baseline if evaluation else None,
        "evaluated_at": evaluation.created_at if evaluation else None,
    }


def _links(candidate_id: str, job_id: str) -> dict[str, str]:
    own = f"/v1/candidates/{candidate_id}"
    return {"self": own, "source": f"{own}/source", "log": f"{own}/log", "job": f"/v1/jobs/{job_id}"}
