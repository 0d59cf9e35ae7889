"""A fleet's rows without the fleet: jobs that ended as they should, and the journal of a client that was told so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session, sessionmaker

from cli.embedded.postgres import EmbeddedPostgres
from db import events, jobs, ledger, llm_calls
from db.jobs import IdempotencyKey
from db.llm_calls import CallRecord
from db.models import Job
from db.session import make_engine, make_sessions
from db.vocabulary import Proposer, StopReason, WorkKind, WorkState
from tests.chaos.journal import Journal
from tests.support.ledger import claim_kind, evaluate, make_candidates, new_job, propose, report

PRICE_USD = Decimal("0.2")


@dataclass(frozen=True, slots=True)
class World:
    """What the checker looks at."""

    connection: Connection
    journal: Journal
    job_id: str
    candidates: tuple[str, ...]

    def run(self, statement: str, **values: object) -> None:
        """Plant something: written past the service, and past the constraints that would forbid it."""
        self.connection.execute(text(statement), {"job": self.job_id, "candidate": self.candidates[0], **values})


@pytest.fixture(scope="module")
def sound(
    postgres: EmbeddedPostgres, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Journal, str]]:
    """One job of two candidates from submission to end, through the functions of production, all of it told."""
    engine = make_engine(postgres.url_for(module_database), "tests")
    sessions = make_sessions(engine)
    journal = Journal(tmp_path_factory.mktemp("told") / "journal.jsonl")
    journal.write("submitting", key="key-1", body={})
    with sessions.begin() as session:
        job = jobs.create_job(session, new_job(), IdempotencyKey("key-1", "hash")).job
    journal.write("accepted", key="key-1", job_id=job.id, status=202, state="queued")
    _work(sessions, job)
    with sessions() as session:
        for event in events.page(session, job.id, limit=1000):
            journal.write("event", job_id=job.id, seq=event.seq, type=event.type, data=event.data)
        ended = jobs.fetch_job(session, job.id)
    journal.write("ended", job_id=job.id, state=ended.state, stop_reason=ended.stop_reason, usd="0.4")
    yield engine, journal, job.id
    engine.dispose()


@pytest.fixture
def world(sound: tuple[Engine, Journal, str], tmp_path: Path) -> Iterator[World]:
    """All that in a transaction and a journal of this test alone."""
    engine, journal, job_id = sound
    own = tmp_path / "journal.jsonl"
    own.write_bytes(journal.path.read_bytes())
    with engine.connect() as connection:
        made = connection.execute(text("SELECT id FROM candidates ORDER BY ordinal")).scalars()
        yield World(connection, Journal(own), job_id, tuple(made))
        connection.rollback()


def _work(sessions: sessionmaker[Session], job: Job) -> None:
    advance = claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        ledger.settle(session, advance)
        jobs.start_job(session, jobs.fetch_job(session, job.id))
    made = make_candidates(sessions, job, 2, proposer=Proposer.LLM.value, queue="llm", model="openai/scripted")
    for number, candidate_id in enumerate(made):
        with sessions.begin() as session:
            call_id = llm_calls.start_call(session, candidate_id, "propose", "openai/scripted")
        with sessions.begin() as session:
            record = CallRecord("openai/scripted", answer=f"ANSWER = {number}", cost_usd=PRICE_USD)
            llm_calls.finish_call(session, call_id, record)
        propose(sessions, candidate_id, f"ANSWER = {number}")
        evaluate(sessions, candidate_id, **report(gpu_s=0.25))
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET state = 'done' WHERE state = 'queued'"))
        jobs.finish_job(session, job.id, StopReason.BUDGET_CANDIDATES)
    learn = claim_kind(sessions, WorkKind.LEARN)
    with sessions.begin() as session:
        ledger.finish(session, learn, state=WorkState.DONE)
