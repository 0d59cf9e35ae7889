"""Paid calls: written before and after, booked once, reused by a re-run."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy.orm import Session, sessionmaker

from db import jobs, llm_calls
from db.llm_calls import CallRecord
from db.vocabulary import LlmCallState, StopReason
from tests.support.ledger import event_types, fresh, make_candidates, make_job

Sessions = sessionmaker[Session]
KEY = "propose"


def start(sessions: Sessions, candidate_id: str) -> str:
    with sessions.begin() as session:
        return llm_calls.start_call(session, candidate_id, KEY, "openai/gpt-5")


def finish(sessions: Sessions, call_id: str, cost: str | None, answer: str = "code") -> LlmCallState:
    record = CallRecord(
        "openai/gpt-5",
        prompt="[]",
        answer=answer,
        tokens_in=10,
        tokens_out=20,
        cost_usd=Decimal(cost) if cost else None,
    )
    with sessions.begin() as session:
        return llm_calls.finish_call(session, call_id, record)


def test_a_finished_call_is_found_by_a_re_run_and_a_started_one_is_not(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    call_id = start(sessions, candidate_id)
    with sessions.begin() as session:
        assert llm_calls.find_finished(session, candidate_id, KEY) is None
    finish(sessions, call_id, "0.25")
    with sessions.begin() as session:
        found = llm_calls.find_finished(session, candidate_id, KEY)
        assert llm_calls.find_finished(session, candidate_id, "another purpose") is None
    assert found is not None and found.id == call_id
    assert (found.answer, found.cost_usd) == ("code", Decimal("0.25"))
    assert fresh(sessions, job).cost_usd == Decimal("0.25")
    assert event_types(sessions, job.id)[-1] == "llm.finished"


def test_a_call_is_booked_once_however_often_it_is_finished(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    call_id = start(sessions, candidate_id)
    assert finish(sessions, call_id, "0.25") is LlmCallState.FINISHED
    assert finish(sessions, call_id, "0.25") is LlmCallState.FINISHED
    assert fresh(sessions, job).cost_usd == Decimal("0.25")


def test_two_attempts_that_both_paid_are_both_booked_and_the_first_answer_stands(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    early, late = start(sessions, candidate_id), start(sessions, candidate_id)
    assert finish(sessions, late, "0.25", "second") is LlmCallState.FINISHED
    assert finish(sessions, early, "0.5", "first") is LlmCallState.SUPERSEDED
    with sessions.begin() as session:
        found = llm_calls.find_finished(session, candidate_id, KEY)
    assert found is not None and found.answer == "second"
    assert fresh(sessions, job).cost_usd == Decimal("0.75")


def test_money_spent_after_the_end_of_the_job_counts_too(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    call_id = start(sessions, candidate_id)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.CANCELLED)
    finish(sessions, call_id, "0.25")
    assert fresh(sessions, job).cost_usd == Decimal("0.25")


def test_an_unknown_cost_is_not_zero(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    finish(sessions, start(sessions, candidate_id), None)
    with sessions.begin() as session:
        found = llm_calls.find_finished(session, candidate_id, KEY)
        progress = jobs.job_progress(session, [job.id])[job.id]
    assert found is not None and found.cost_usd is None
    assert (progress.llm_calls, progress.tokens_in, progress.tokens_out) == (1, 10, 20)
