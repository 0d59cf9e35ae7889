"""What earlier calls and evaluations took, as percentiles."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy.orm import Session, sessionmaker

from db import history, llm_calls
from db.llm_calls import CallRecord
from tests.support.ledger import evaluate, make_candidates, make_job, propose

Sessions = sessionmaker[Session]


def call(sessions: Sessions, candidate_id: str, model: str, tokens: int | None, usd: str | None = None) -> None:
    with sessions.begin() as session:
        call_id = llm_calls.start_call(session, candidate_id, f"purpose {tokens}", model)
        cost = None if usd is None else Decimal(usd)
        record = CallRecord(model, tokens_in=tokens, tokens_out=tokens, cost_usd=cost)
        llm_calls.finish_call(session, call_id, record)


def test_calls_are_told_by_model_and_what_was_not_counted_is_left_out(sessions: Sessions) -> None:
    (candidate_id,) = make_candidates(sessions, make_job(sessions))
    for tokens in range(0, 1100, 100):
        call(sessions, candidate_id, "priced", tokens, "0.5")
    call(sessions, candidate_id, "unpriced", 700)
    call(sessions, candidate_id, "uncounted", None)
    with sessions.begin() as session:
        llm_calls.start_call(session, candidate_id, "in flight", "priced")
    with sessions.begin() as session:
        found = history.call_histories(session, ["priced", "unpriced", "uncounted", "unheard-of", "priced"])
    assert set(found) == {"priced", "unpriced"}
    priced, unpriced = found["priced"], found["unpriced"]
    assert (priced.calls, priced.tokens_in, priced.priced_calls, priced.usd) == (11, (100, 900), 11, (0.5, 0.5))
    assert (unpriced.calls, unpriced.priced_calls, unpriced.usd) == (1, 0, None)


def test_evaluations_of_this_problem_come_before_those_of_others(sessions: Sessions) -> None:
    for problem, gpu_s in (("hash-a", 2.0), ("hash-b", 6.0)):
        job = make_job(sessions, problem_hash=problem)
        (candidate_id,) = make_candidates(sessions, job)
        propose(sessions, candidate_id)
        evaluate(sessions, candidate_id, gpu_s=gpu_s)
    with sessions.begin() as session:
        assert history.evaluation_seconds(session, "cpu", "hash-a") == (2.0, 2.0)
        assert history.evaluation_seconds(session, "cpu", "hash-c") == pytest.approx((2.4, 5.6))
        assert history.evaluation_seconds(session, "nvidia-h100", "hash-a") is None
