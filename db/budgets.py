"""Hard caps where money is spent: what a key's jobs used together, and whether one more call may start.

The search holds a job back when a cap is used up (`search.stopping`), from what it reads here. That is not enough: what
it planned before may still wait for a worker. So every call asks once more, under the locks, before it is paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final

from sqlalchemy import ColumnElement, bindparam, func, or_, select
from sqlalchemy.orm import Session

from db.account_models import ApiKey, PlainRequest
from db.models import Candidate, Job
from db.vocabulary import CandidateState, Failure

CAPS: Final = ("usd", "tokens", "calls", "gpu_s", "wall_s", "candidates")
"""The names of a key's caps; `budget_<name>` is the column."""

QUOTAS: Final = ("jobs", "jobs_per_day")
"""How many jobs a key may have in flight, and may submit within 24 hours: asked when it submits one more."""

CAPS_ON_MODELS: Final = ("usd", "tokens", "calls")
"""Those that say nothing to a job without models, which uses none of them."""

_DAY: Final = timedelta(hours=24)
_LOOK_AGAIN_S: Final = 30.0
"""Nobody knows when a job ends; a search takes minutes."""

FREE_FAILURES: Final = (Failure.EXHAUSTED, Failure.DUPLICATE, Failure.PROVIDER_ERROR, Failure.BUDGET)
"""Rejections that take no place in a budget of candidates: as in `search.types`, which a test compares."""


def _any_of(names: Sequence[str]) -> ColumnElement[bool]:
    return or_(*(getattr(ApiKey, f"budget_{name}").is_not(None) for name in names))


_KEY: Final = ApiKey.id == bindparam("key_id")
LOCK_LIMITED: Final = select(ApiKey.id).where(_KEY, _any_of((*CAPS, *QUOTAS))).with_for_update(key_share=True)
"""Lock `:key_id` until the transaction ends if it has caps or quotas, and give its id back.

One without is not locked: its requests would wait for each other, and have nothing to count.
"""
_WITH_QUOTAS: Final = select(ApiKey).where(_KEY, _any_of(QUOTAS)).execution_options(populate_existing=True)


class BudgetSpent(Exception):
    """A cap is used up: raise it, or submit the job anew with a larger one. The message names it."""

    def __init__(self, cap: str, of_key: bool = False) -> None:
        self.cap = cap
        self.of_key = of_key
        super().__init__(f"the cap on {cap} of the {'API key' if of_key else 'job'} is used up")


class QuotaUsed(Exception):
    """A quota of jobs is used up: wait for some to end, or have the quota raised. The message names it."""

    def __init__(self, name: str, quota: int, retry_s: float) -> None:
        self.name = name
        self.retry_s = retry_s
        """In so many seconds there may be room again."""
        what = "in flight" if name == "jobs" else "of the last 24 hours"
        super().__init__(f"the quota `{name}` of the API key is used up: it has {quota} of {quota} jobs {what}")


@dataclass(frozen=True, slots=True)
class Spent:
    """What the jobs and requests of one key used so far, those that still run included."""

    usd: Decimal
    tokens: int
    calls: int
    gpu_s: float
    wall_s: float
    candidates: int


def key_spent(session: Session, key_id: str) -> Spent:
    """What a key's jobs and requests used. Two queries over its jobs, one over its requests."""
    ran_s = func.extract("epoch", func.coalesce(Job.finished_at, func.now()) - Job.started_at)
    sums = [func.sum(column) for column in (Job.cost_usd, Job.llm_tokens, Job.llm_calls, Job.gpu_s, ran_s)]
    usd, tokens, calls, gpu_s, wall_s = session.execute(select(*sums).where(Job.key_id == key_id)).one()
    written = session.execute(
        select(
            func.sum(PlainRequest.cost_usd),
            func.sum(func.coalesce(PlainRequest.tokens_in, 0) + func.coalesce(PlainRequest.tokens_out, 0)),
            func.sum(PlainRequest.calls),
        ).where(PlainRequest.key_id == key_id)
    ).one()
    return Spent(
        usd=(usd or Decimal(0)) + (written[0] or Decimal(0)),
        tokens=int(tokens or 0) + int(written[1] or 0),
        calls=int(calls or 0) + int(written[2] or 0),
        gpu_s=float(gpu_s or 0),
        wall_s=float(wall_s or 0),
        candidates=_candidates(session, key_id),
    )


def key_over(session: Session, key_id: str | None, *, models: bool = True) -> str | None:
    """Which of the key's caps is used up, the first in the order of `CAPS`; None while none is.

    Without `models` only those are asked that bind a job that calls none.
    """
    key = session.get(ApiKey, key_id, populate_existing=True) if key_id is not None else None
    names = [name for name in CAPS if models or name not in CAPS_ON_MODELS]
    caps = {name: getattr(key, f"budget_{name}") for name in names} if key is not None else {}
    if key is None or all(cap is None for cap in caps.values()):
        return None
    spent = key_spent(session, key.id)
    return next((name for name, cap in caps.items() if cap is not None and getattr(spent, name) >= cap), None)


def lock_limited(session: Session, key_id: str | None) -> bool:
    """Lock a key that has caps or quotas until the transaction ends; whether it has."""
    return key_id is not None and session.scalar(LOCK_LIMITED, {"key_id": key_id}) is not None


def check_key(session: Session, key_id: str | None, *, models: bool = True) -> None:
    """Before a call of this key, which is locked. Lock order: the job, then its key. Raises BudgetSpent."""
    if lock_limited(session, key_id):
        _check_caps(session, key_id, models=models)


def check_submission(session: Session, key_id: str | None, *, models: bool) -> None:
    """Before a key's next job, with `models` or without, under the lock of `LOCK_LIMITED`.

    Raises BudgetSpent, QuotaUsed.
    """
    _check_caps(session, key_id, models=models)
    key = session.scalar(_WITH_QUOTAS, {"key_id": key_id})
    if key is None:
        return
    if key.budget_jobs is not None and jobs_in_flight(session, key.id) >= key.budget_jobs:
        raise QuotaUsed("jobs", key.budget_jobs, _LOOK_AGAIN_S)
    if key.budget_jobs_per_day is None:
        return
    of_today = (Job.key_id == key.id, Job.created_at > func.now() - _DAY)
    count, oldest_s = session.execute(
        select(func.count(), func.extract("epoch", func.now() - func.min(Job.created_at))).where(*of_today)
    ).one()
    if count >= key.budget_jobs_per_day:
        raise QuotaUsed("jobs_per_day", key.budget_jobs_per_day, max(_DAY.total_seconds() - float(oldest_s or 0), 1.0))


def _check_caps(session: Session, key_id: str | None, *, models: bool) -> None:
    over = key_over(session, key_id, models=models)
    if over is not None:
        raise BudgetSpent(over, of_key=True)


def jobs_in_flight(session: Session, key_id: str) -> int:
    """How many of the key's jobs have not ended."""
    return session.scalar(select(func.count()).where(Job.key_id == key_id, Job.finished_at.is_(None))) or 0


def jobs_of_today(session: Session, key_id: str) -> int:
    """How many jobs the key submitted within 24 hours."""
    return session.scalar(select(func.count()).where(Job.key_id == key_id, Job.created_at > func.now() - _DAY)) or 0


def check_call(session: Session, job: Job, *, keep: int = 0) -> None:
    """Before a call of this job, whose lock the caller holds. `keep`: so many calls must be left after this one.

    Raises BudgetSpent.
    """
    caps: dict[str, bool] = {
        "usd": job.budget_usd is not None and job.cost_usd >= job.budget_usd,
        "tokens": job.budget_tokens is not None and job.llm_tokens >= job.budget_tokens,
        "calls": job.budget_calls is not None and job.llm_calls + keep >= job.budget_calls,
    }
    for name, over in caps.items():
        if over:
            raise BudgetSpent(name)
    check_key(session, job.key_id)


def _candidates(session: Session, key_id: str) -> int:
    """Those that took a place in a budget: judged, rejected for their own fault, or in flight."""
    free = (Candidate.state == CandidateState.REJECTED.value) & Candidate.failure.in_([str(f) for f in FREE_FAILURES])
    query = (
        select(func.count())
        .select_from(Candidate)
        .join(Job, Job.id == Candidate.job_id)
        .where(Job.key_id == key_id, Candidate.state != CandidateState.CANCELLED.value, ~func.coalesce(free, False))
    )
    return session.scalar(query) or 0
