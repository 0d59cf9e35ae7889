"""What the details of a candidate say beyond its row: the one that it is again, and what tuning measured for it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from api.candidate_views import candidate_detail
from db.listing import CandidateRow
from db.models import Candidate, Evaluation
from db.tuning_models import Tuning

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def row(ordinal: int, evaluation: Evaluation | None = None) -> CandidateRow:
    candidate = Candidate(
        id=f"cand_{ordinal}",
        job_id="job_1",
        ordinal=ordinal,
        operator="tune",
        proposer="builtin",
        parents=[],
        state="evaluated" if evaluation else "rejected",
        cost_usd=Decimal(0),
        created_at=NOW,
    )
    return CandidateRow(candidate, evaluation)


def test_a_duplicate_shows_the_earlier_verdict() -> None:
    judged = Evaluation(verdict="ok", reason="", timed=True, speedup=1.5, created_at=NOW, report={})
    detail = candidate_detail(row(2), twin=row(1, judged))
    assert detail.verdict is None
    assert detail.duplicate is not None
    assert detail.duplicate.model_dump() == {
        "candidate_id": "cand_1", "ordinal": 1, "verdict": "ok", "speedup": 1.5
    }  # fmt: skip
    waiting = candidate_detail(row(2), twin=row(1)).duplicate
    assert waiting is not None and waiting.verdict is None


def test_what_was_measured_is_shown() -> None:
    trials = [{"params": {"BLOCK": 64}, "verdict": "ok", "ratios": {"small": 1.2}}]
    detail = candidate_detail(row(2), tuning=Tuning(measured={"trials": trials}, gpu_s=1.5, wall_s=3.0))
    assert detail.tuning is not None
    assert (detail.tuning.configurations, detail.tuning.gpu_s, detail.tuning.trials) == (1, 1.5, trials)
    assert candidate_detail(row(2)).tuning is None
