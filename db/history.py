"""What earlier calls and evaluations took, for the estimate of what the next will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

LATEST: Final = 500
"""Only so many of the latest calls or evaluations are looked at: prompts, models and machines change."""

_CALLS: Final = text(
    """
    SELECT wanted.model,
           count(made.id) AS calls,
           percentile_cont(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY made.tokens_in) AS tokens_in,
           percentile_cont(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY made.tokens_out) AS tokens_out,
           count(made.cost_usd) AS priced_calls,
           percentile_cont(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY made.cost_usd::float8) AS usd
    FROM unnest(CAST(:models AS text[])) AS wanted(model)
    JOIN LATERAL (
        SELECT id, tokens_in, tokens_out, cost_usd FROM llm_calls
        WHERE model = wanted.model AND state <> 'started' AND error IS NULL
          AND tokens_in IS NOT NULL AND tokens_out IS NOT NULL
        ORDER BY id DESC LIMIT :latest
    ) AS made ON true
    GROUP BY wanted.model
    """
)

_EVALUATIONS: Final = text(
    """
    SELECT count(*) AS evaluations, percentile_cont(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY gpu_s) AS gpu_s
    FROM (SELECT evaluations.gpu_s FROM evaluations JOIN jobs ON jobs.id = evaluations.job_id
          WHERE jobs.hardware = :hardware AND (CAST(:problem AS text) IS NULL OR jobs.problem_hash = :problem)
            AND evaluations.verdict <> 'infra_error'
          ORDER BY evaluations.id DESC LIMIT :latest) AS latest
    """
)


@dataclass(frozen=True, slots=True)
class CallHistory:
    """Of one model: how many calls, and the 10th and 90th percentile of tokens and, of those with a price, of USD."""

    calls: int
    tokens_in: tuple[float, float]
    tokens_out: tuple[float, float]
    priced_calls: int
    usd: tuple[float, float] | None


def call_histories(session: Session, models: Sequence[str]) -> Mapping[str, CallHistory]:
    """What the latest answered calls of these models took; nothing for a model that was never called."""
    rows = session.execute(_CALLS, {"models": list(dict.fromkeys(models)), "latest": LATEST})
    return {
        row.model: CallHistory(
            calls=row.calls,
            tokens_in=_pair(row.tokens_in),
            tokens_out=_pair(row.tokens_out),
            priced_calls=row.priced_calls,
            usd=_pair(row.usd) if row.priced_calls else None,
        )
        for row in rows
    }


def evaluation_seconds(session: Session, hardware: str, problem_hash: str) -> tuple[float, float] | None:
    """Device seconds of an evaluation, 10th and 90th percentile: of this problem on this hardware, or else of any."""
    for problem in (problem_hash, None):
        parameters = {"hardware": hardware, "problem": problem, "latest": LATEST}
        row = session.execute(_EVALUATIONS, parameters).one()
        if row.evaluations:
            return _pair(row.gpu_s)
    return None


def _pair(values: Any) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)
