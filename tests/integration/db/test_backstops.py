"""What the schema itself refuses, should a statement be wrong one day: nothing is stored or paid twice."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from db import jobs, llm_calls
from db.jobs import IdempotencyKey
from db.llm_calls import CallRecord
from tests.support.ledger import evaluate, make_candidates, new_job, propose

Sessions = sessionmaker[Session]

_AGAIN = {
    "evaluation": (
        "INSERT INTO evaluations (id, candidate_id, job_id, verdict)"
        " SELECT 'eval_again', candidate_id, job_id, verdict FROM evaluations",
        "uq_evaluations_candidate_id",
    ),
    "finished call": (
        "INSERT INTO llm_calls (id, job_id, candidate_id, key, state, model)"
        " SELECT 'call_again', job_id, candidate_id, key, state, model FROM llm_calls",
        "uq_llm_calls_finished",
    ),
    "work of a kind": (
        "INSERT INTO work (id, kind, queue, job_id, candidate_id)"
        " SELECT 'work_again', kind, queue, job_id, candidate_id FROM work WHERE kind = 'evaluate'",
        "uq_work_candidate_id_kind",
    ),
    "idempotency key": (
        "INSERT INTO idempotency_keys (key, request_hash, job_id)"
        " SELECT key, request_hash, job_id FROM idempotency_keys",
        "pk_idempotency_keys",
    ),
    "source of a job": (
        "INSERT INTO candidates (id, job_id, ordinal, operator, proposer, state, source_hash)"
        " SELECT 'cand_again', job_id, 99, operator, proposer, 'queued', source_hash FROM candidates",
        "uq_candidates_job_id_source_hash",
    ),
    "queued advance": (
        "INSERT INTO work (id, kind, queue, job_id) SELECT 'work_again', kind, queue, job_id FROM work"
        " WHERE kind = 'advance' AND state = 'queued'",
        "uq_work_queued_advance",
    ),
    "lease": ("UPDATE work SET state = 'running' WHERE kind = 'advance'", "ck_work_lease"),
}


@pytest.mark.parametrize("what", _AGAIN)
def test_the_schema_itself_refuses_what_would_count_twice(sessions: Sessions, what: str) -> None:
    with sessions.begin() as session:
        job = jobs.create_job(session, new_job(), IdempotencyKey("key", "body")).job
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    evaluate(sessions, candidate_id)
    with sessions.begin() as session:
        call_id = llm_calls.start_call(session, candidate_id, "propose", "openai/gpt-5")
        llm_calls.finish_call(session, call_id, CallRecord("openai/gpt-5", cost_usd=Decimal(1)))
    statement, constraint = _AGAIN[what]
    with pytest.raises(IntegrityError, match=constraint), sessions.begin() as session:
        session.execute(text(statement))
