"""From candidate rows to candidate resources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from api.candidate_schemas import Candidate, CandidateDetail
from api.job_views import ci95
from db.generated import Listed
from db.listing import CandidateRow
from db.models import Evaluation
from db.tuning_models import Tuning


def candidate_view(row: CandidateRow) -> Candidate:
    """The resource of a list."""
    return Candidate.model_validate(_fields(row))


def candidate_detail(
    row: CandidateRow, twin: CandidateRow | None = None, tuning: Tuning | None = None, code: Sequence[Listed] = ()
) -> CandidateDetail:
    """The resource with source and report; with the candidate that it is again, what tuning measured for it, and which
    generated code there is."""
    fields = _fields(row)
    links = {str(each.kind): f"{fields['links']['self']}/{each.kind}" for each in code}
    more = {
        "source": row.candidate.source,
        "report": row.evaluation.report if row.evaluation else None,
        "duplicate": _duplicate(twin) if twin else None,
        "tuning": _tuning(tuning) if tuning else None,
        "code": [asdict(each) for each in code],
        "links": fields["links"] | links,
    }
    return CandidateDetail.model_validate(fields | more)


def _duplicate(twin: CandidateRow) -> dict[str, Any]:
    found = twin.evaluation
    return {
        "candidate_id": twin.candidate.id,
        "ordinal": twin.candidate.ordinal,
        "verdict": found.verdict if found else None,
        "speedup": found.speedup if found else None,
    }


def _tuning(tuning: Tuning) -> dict[str, Any]:
    trials = tuning.measured.get("trials") or []
    return {"configurations": len(trials), "gpu_s": tuning.gpu_s, "wall_s": tuning.wall_s, "trials": trials}


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
