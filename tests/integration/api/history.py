"""What workers do to a job, step by step, through the same functions that they use."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, certificates, jobs, ledger
from db.candidates import NewCandidate, Proposed
from db.ledger import Claim
from db.models import Work
from db.vocabulary import QUEUE_CPU, Operator, Proposer, StopReason, WorkKind, WorkState
from worker.judge.certificate.document import document_hash

OWNER = "worker_of_the_tests"
PAGE = "<!doctype html><title>softmax on cpu: kernel certificate — é</title>"
SOURCE = "class ModelNew: ...  # {ordinal}\n"


class History:
    """Moves jobs along; each step is a transaction of its own, as in a worker."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions

    def start(self, job_id: str) -> None:
        with self._sessions.begin() as session:
            jobs.start_job(session, jobs.fetch_job(session, job_id))

    def propose(self, job_id: str, count: int = 1) -> list[str]:
        """Add candidates that are still being proposed; their ids."""
        new = NewCandidate(Operator.SEED.value, Proposer.BUILTIN.value, QUEUE_CPU)
        with self._sessions.begin() as session:
            return candidates.add_candidates(session, jobs.fetch_job(session, job_id), [new] * count)

    def evaluate(self, job_id: str, **report: Any) -> str:
        """One candidate all the way from nothing to its evaluation; its id."""
        (candidate_id,) = self.propose(job_id)
        source = SOURCE.format(ordinal=candidate_id)
        with self._sessions.begin() as session:
            claim = self._claim(session, candidate_id, WorkKind.PROPOSE)
            candidates.store_proposal(
                session, claim, Proposed(source, source_hash=candidate_id, plan="a plan"), queue=QUEUE_CPU
            )
        with self._sessions.begin() as session:
            claim = self._claim(session, candidate_id, WorkKind.EVALUATE)
            candidates.store_evaluation(session, claim, {"verdict": "ok", "timed": True} | report)
        return candidate_id

    def reject(self, job_id: str, failure: str) -> str:
        """One candidate whose proposer produced nothing; its id."""
        (candidate_id,) = self.propose(job_id)
        with self._sessions.begin() as session:
            claim = self._claim(session, candidate_id, WorkKind.PROPOSE)
            candidates.reject_candidate(session, claim, failure, "said no")
        return candidate_id

    def certify(self, job_id: str, **found: Any) -> dict[str, Any]:
        """The job's best, from a queued `certify` to its stored document, which is returned."""
        body = {"certified": True, "verdict": "ok", "reason": ""} | found
        document = body | {"sha256": document_hash(body)}
        with self._sessions.begin() as session:
            job = jobs.fetch_job(session, job_id)
            certificates.enqueue_certify(session, job)
            claim = self._claim(session, str(job.best_candidate_id), WorkKind.CERTIFY)
        with self._sessions.begin() as session:
            certificates.store_certificate(session, claim, document, PAGE)
        return document

    def finish(self, job_id: str, why: StopReason = StopReason.BUDGET_CANDIDATES) -> None:
        with self._sessions.begin() as session:
            jobs.finish_job(session, job_id, why)

    def _claim(self, session: Session, candidate_id: str, kind: WorkKind) -> Claim:
        wanted = (Work.candidate_id == candidate_id, Work.kind == kind.value, Work.state == WorkState.QUEUED.value)
        work_id = session.scalars(select(Work.id).where(*wanted)).one()
        claim = ledger.claim(session, work_id, OWNER)
        assert claim is not None
        return claim
