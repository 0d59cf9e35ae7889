"""Caps where money is spent: of a job and of an API key, with many who ask at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import search.types
from db import budgets, candidates, llm_calls
from db.account_models import ApiKey, PlainRequest
from db.budgets import BudgetSpent
from db.llm_calls import CallRecord
from db.models import Job
from tests.support.ledger import fresh, make_candidates, make_job

Sessions = sessionmaker[Session]
MODEL = "openai/gpt-5"


@pytest.fixture
def key(sessions: Sessions) -> str:
    with sessions.begin() as session:
        session.add(ApiKey(id="key_1", name="team", token_hash="0" * 64))
    return "key_1"


def cap(sessions: Sessions, **caps: Any) -> None:
    with sessions.begin() as session:
        for name, value in caps.items():
            setattr(session.get_one(ApiKey, "key_1"), f"budget_{name}", value)


def start(sessions: Sessions, candidate_id: str, *, keep: int = 0) -> str | None:
    """The call's id, or None when a cap forbids it."""
    try:
        with sessions.begin() as session:
            return llm_calls.start_call(session, candidate_id, "propose", MODEL, keep=keep)
    except BudgetSpent:
        return None


def call(sessions: Sessions, candidate_id: str, **record: Any) -> None:
    call_id = start(sessions, candidate_id)
    assert call_id is not None
    with sessions.begin() as session:
        llm_calls.finish_call(session, call_id, CallRecord(MODEL, **record))


def job_with_candidate(sessions: Sessions, **fields: Any) -> tuple[Job, str]:
    job = make_job(sessions, models=(MODEL,), **fields)
    return job, make_candidates(sessions, job, proposer="llm", model=MODEL, queue="llm")[0]


def test_the_free_failures_are_the_searchs() -> None:
    assert {str(failure) for failure in budgets.FREE_FAILURES} == {str(f) for f in search.types.FREE_FAILURES}


def test_of_calls_that_start_at_once_only_those_under_the_cap_do(sessions: Sessions) -> None:
    job = make_job(sessions, models=(MODEL,), budget_calls=3)
    ids = make_candidates(sessions, job, 8, proposer="llm", model=MODEL, queue="llm")
    with ThreadPoolExecutor(8) as threads:
        started = list(threads.map(lambda candidate_id: start(sessions, candidate_id), ids))
    assert sum(each is not None for each in started) == 3
    assert fresh(sessions, job).llm_calls == 3


def test_of_a_keys_calls_that_start_at_once_in_several_jobs_only_those_under_its_cap_do(
    sessions: Sessions, key: str
) -> None:
    cap(sessions, calls=3)
    ids = [job_with_candidate(sessions, key_id=key)[1] for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        started = list(threads.map(lambda candidate_id: start(sessions, candidate_id), ids))
    assert sum(each is not None for each in started) == 3


@pytest.mark.parametrize(
    ("fields", "record", "named"),
    [
        ({"budget_usd": Decimal("0.10")}, {"cost_usd": Decimal("0.10")}, "usd"),
        ({"budget_tokens": 30}, {"tokens_in": 20, "tokens_out": 10}, "tokens"),
        ({"budget_calls": 1}, {}, "calls"),
    ],
)
def test_a_job_starts_no_call_beyond_a_cap(
    sessions: Sessions, fields: dict[str, Any], record: dict[str, Any], named: str
) -> None:
    _, candidate_id = job_with_candidate(sessions, **fields)
    call(sessions, candidate_id, **record)
    with pytest.raises(BudgetSpent, match=f"the cap on {named} of the job"), sessions.begin() as session:
        llm_calls.start_call(session, candidate_id, "propose", MODEL)


def test_help_is_not_asked_for_with_the_last_call(sessions: Sessions) -> None:
    _, candidate_id = job_with_candidate(sessions, budget_calls=2)
    assert start(sessions, candidate_id, keep=1) is not None
    assert start(sessions, candidate_id, keep=1) is None
    assert start(sessions, candidate_id) is not None


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({"tokens_in": 20, "tokens_out": 10}, 30),
        ({"prompt": "x" * 400, "answer": "y" * 40}, 110),
        ({"prompt": "x" * 400, "error": "429"}, 0),
    ],
)
def test_tokens_that_nobody_counted_are_estimated(sessions: Sessions, record: dict[str, Any], tokens: int) -> None:
    job, candidate_id = job_with_candidate(sessions)
    call(sessions, candidate_id, **record)
    assert fresh(sessions, job).llm_tokens == tokens


def test_what_a_key_spent_is_the_sum_over_its_jobs_and_requests(sessions: Sessions, key: str) -> None:
    for _ in range(2):
        _, candidate_id = job_with_candidate(sessions, key_id=key)
        call(sessions, candidate_id, tokens_in=20, tokens_out=10, cost_usd=Decimal("0.5"))
    job_with_candidate(sessions)
    with sessions.begin() as session:
        paid = {"calls": 2, "tokens_in": 5, "cost_usd": Decimal("0.25")}
        session.add(PlainRequest(id="req_1", words="softmax", state="proposed", key_id=key, **paid))
        session.execute(text("UPDATE jobs SET gpu_s = 3, started_at = now() - interval '10 s', finished_at = now()"))
    with sessions.begin() as session:
        spent = budgets.key_spent(session, key)
    assert (spent.usd, spent.tokens, spent.calls) == (Decimal("1.25"), 65, 4)
    assert (spent.gpu_s, spent.wall_s, spent.candidates) == (6.0, 20.0, 2)


def test_free_rejections_and_cancelled_candidates_take_no_place_in_a_keys_budget(sessions: Sessions, key: str) -> None:
    job = make_job(sessions, key_id=key)
    free, cancelled, own_fault, _ = make_candidates(sessions, job, 4)
    with sessions.begin() as session:
        candidates.reject_unsettled(session, free, "budget")
        candidates.reject_unsettled(session, own_fault, "no_code")
        session.execute(text("UPDATE candidates SET state = 'cancelled' WHERE id = :id"), {"id": cancelled})
    with sessions.begin() as session:
        assert budgets.key_spent(session, key).candidates == 2


@pytest.mark.parametrize("name", budgets.CAPS)
def test_each_cap_of_a_key_is_seen_when_it_is_used_up(sessions: Sessions, key: str, name: str) -> None:
    _, candidate_id = job_with_candidate(sessions, key_id=key)
    call(sessions, candidate_id, tokens_in=20, tokens_out=10, cost_usd=Decimal(1))
    with sessions.begin() as session:
        session.execute(text("UPDATE jobs SET gpu_s = 1, started_at = now() - interval '1 s', finished_at = now()"))
    cap(sessions, **{name: 1000})
    with sessions.begin() as session:
        assert budgets.key_over(session, key) is None
    cap(sessions, **{name: 1})
    with sessions.begin() as session:
        assert budgets.key_over(session, key) == name
        bound = None if name in budgets.CAPS_ON_MODELS else name
        assert budgets.key_over(session, key, models=False) == bound, "a job without models"
    assert start(sessions, candidate_id) is None


def test_a_key_without_caps_and_a_job_without_a_key_are_free(sessions: Sessions, key: str) -> None:
    with sessions.begin() as session:
        assert budgets.key_over(session, key) is None
        assert budgets.key_over(session, None) is None
