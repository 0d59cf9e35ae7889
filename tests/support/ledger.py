"""Jobs, claims and reports for tests of the ledger: real rows, made through the functions that production uses."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, jobs, ledger
from db.candidates import NewCandidate, Proposed
from db.jobs import NewJob
from db.ledger import Claim, take_doorbells
from db.models import Job
from db.vocabulary import CPU, Language, Operator, Proposer, WorkKind

OWNER = "worker_1"
PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""


def new_job(**overrides: Any) -> NewJob:
    """A request for a softmax on the cpu."""
    fields: dict[str, Any] = {
        "problem_hash": "hash-of-softmax",
        "problem_name": "softmax",
        "problem_source": PROBLEM,
        "hardware": CPU,
        "language": Language.CPP.value,
        "budget_candidates": 10,
    }
    return NewJob(**fields | overrides)


def make_job(sessions: sessionmaker[Session], **overrides: Any) -> Job:
    """A stored job; its doorbell is dropped."""
    with sessions.begin() as session:
        return jobs.create_job(session, new_job(**overrides)).job


def make_candidates(sessions: sessionmaker[Session], job: Job, count: int = 1, **overrides: Any) -> list[str]:
    """Candidates in state `proposing`, with their work; their ids."""
    fields: dict[str, Any] = {
        "operator": Operator.SEED.value,
        "proposer": Proposer.BUILTIN.value,
        "queue": "cpu",
    }
    with sessions.begin() as session:
        return candidates.add_candidates(session, job, [NewCandidate(**fields | overrides)] * count)


def claim_kind(sessions: sessionmaker[Session], kind: WorkKind, candidate_id: str | None = None) -> Claim:
    """Claim the queued work of this kind (and candidate). Fails the test when there is none."""
    query = text(
        "SELECT id FROM work WHERE kind = :kind AND state = 'queued'"
        " AND (CAST(:candidate AS text) IS NULL OR candidate_id = :candidate) ORDER BY id"
    )
    with sessions.begin() as session:
        work_id = session.execute(query, {"kind": kind.value, "candidate": candidate_id}).scalars().first()
        assert work_id is not None, f"no queued {kind} work"
        claim = ledger.claim(session, work_id, OWNER)
    assert claim is not None
    return claim


def propose(sessions: sessionmaker[Session], candidate_id: str, source: str | None = None, **fields: Any) -> str:
    """Give a proposing candidate a source (its own, unless one is given); its state after that."""
    claim = claim_kind(sessions, WorkKind.PROPOSE, candidate_id)
    source = source if source is not None else f"class ModelNew: name = {candidate_id!r}\n"
    with sessions.begin() as session:
        proposed = Proposed(source, source_hash=repr(source), **fields)
        return candidates.store_proposal(session, claim, proposed, queue="cpu").value


def evaluate(sessions: sessionmaker[Session], candidate_id: str, *, worker_id: str | None = None, **found: Any) -> str:
    """Evaluate a queued candidate, by a worker that is said to be `worker_id`; the evaluation's id."""
    claim = claim_kind(sessions, WorkKind.EVALUATE, candidate_id)
    with sessions.begin() as session:
        candidates.start_evaluation(session, claim)
    with sessions.begin() as session:
        return candidates.store_evaluation(session, claim, report(**found), worker_id=worker_id)


def report(**found: Any) -> dict[str, Any]:
    """A judge's report."""
    return {
        "verdict": "ok",
        "timed": True,
        "latency_us": 10.0,
        "speedup": 1.5,
        "ci95": [1.4, 1.6],
        "gpu_s": 2.0,
    } | found


def expire(sessions: sessionmaker[Session], claim: Claim) -> None:
    """Let the lease run out now."""
    with sessions.begin() as session:
        session.execute(
            text("UPDATE work SET lease_expires_at = now() - interval '1 second' WHERE id = :id"), {"id": claim.id}
        )


def states(sessions: sessionmaker[Session], kind: WorkKind) -> list[str]:
    """The states of all work of a kind, oldest first."""
    with sessions.begin() as session:
        query = text("SELECT state FROM work WHERE kind = :kind ORDER BY id")
        return list(session.execute(query, {"kind": kind.value}).scalars())


def event_types(sessions: sessionmaker[Session], job_id: str) -> list[str]:
    """The types of a job's events in order."""
    with sessions.begin() as session:
        query = text("SELECT type FROM events WHERE job_id = :job_id ORDER BY seq")
        return list(session.execute(query, {"job_id": job_id}).scalars())


def fresh(sessions: sessionmaker[Session], job: Job) -> Job:
    """The job as it is now."""
    with sessions.begin() as session:
        return jobs.fetch_job(session, job.id)


def rung(session: Session) -> list[str]:
    """The kinds of the doorbells left in a session."""
    return [doorbell.kind for doorbell in take_doorbells(session)]
