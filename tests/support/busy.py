"""A database in the middle of its work: jobs in every state, claims that are held, and a fleet that goes on."""

from __future__ import annotations

import threading
import time
from decimal import Decimal

from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, events, jobs, ledger, llm_calls, recovery, workers
from db.account_models import ApiKey
from db.candidates import Proposed
from db.jobs import IdempotencyKey
from db.ledger import Claim, Fenced
from db.llm_calls import CallRecord
from db.models import Candidate
from db.vocabulary import CandidateState, StopReason, WorkKind
from db.workers import WorkerFacts
from tests.support.ledger import claim_kind, evaluate, make_candidates, make_job, new_job, propose, report

Sessions = sessionmaker[Session]
QUEUES = ("control", "cpu", "llm")
PATIENCE_S = 60.0


def make_busy(sessions: Sessions) -> list[Claim]:
    """Fill an empty database; the claims that are held: an advance, a proposal and an evaluation."""
    with sessions.begin() as session:
        session.add(ApiKey(id="key_a", name="a", token_hash="a", budget_calls=1000))
        workers.register(session, WorkerFacts("worker_1", "box", 7, QUEUES))
        jobs.create_job(session, new_job(labels={"kind": "just submitted"}), IdempotencyKey("key", "body"))
    cancelling = make_job(sessions)
    running = make_job(sessions, key_id="key_a", priority=5)
    ended = make_job(sessions, key_id="key_a")
    with sessions.begin() as session:
        for job in (cancelling, running, ended):
            jobs.start_job(session, jobs.fetch_job(session, job.id))
    make_candidates(sessions, cancelling, 2)
    with sessions.begin() as session:
        jobs.cancel_job(session, cancelling.id, "enough")
    make_candidates(sessions, running, 2, delay_s=3600)
    best, broken, twin, paid, held, unproposed = make_candidates(sessions, running, 6, queue="llm")
    make_candidates(sessions, running, 4, queue="llm")
    with sessions.begin() as session:
        for cost in ("0.25", "0.5"):  # an answer of record, and one that was paid for beside it
            call_id = llm_calls.start_call(session, paid, "propose", "openai/gpt-5")
            llm_calls.finish_call(session, call_id, CallRecord("openai/gpt-5", answer="x", cost_usd=Decimal(cost)))
        llm_calls.start_call(session, unproposed, "propose", "openai/gpt-5")
    for candidate_id in (best, broken, held):
        propose(sessions, candidate_id)
    propose(sessions, twin, f"class ModelNew: name = {best!r}\n")
    evaluate(sessions, best, speedup=2.0)
    for _ in range(3):
        with sessions.begin() as session:
            session.execute(text("UPDATE work SET not_before = now() WHERE kind = 'evaluate'"))
        claim = claim_kind(sessions, WorkKind.EVALUATE, broken)
        with sessions.begin() as session:
            recovery.give_back(session, claim, "it broke")
    _end(sessions, ended.id)
    return [
        claim_kind(sessions, WorkKind.ADVANCE),
        claim_kind(sessions, WorkKind.PROPOSE, unproposed),
        claim_kind(sessions, WorkKind.EVALUATE, held),
    ]


def _end(sessions: Sessions, job_id: str) -> None:
    with sessions.begin() as session:
        job = jobs.fetch_job(session, job_id)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    evaluate(sessions, candidate_id)
    with sessions.begin() as session:
        jobs.finish_job(session, job_id, StopReason.TARGET_REACHED)


class Fleet:
    """Workers in threads, without a judge: what is claimed is finished, until they are stopped."""

    def __init__(self, sessions: Sessions, size: int = 3) -> None:
        self.sessions = sessions
        self.served = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(f"fleet_{n}",)) for n in range(size)]

    def __enter__(self) -> Fleet:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until_all_have_ended(self) -> None:
        """Fails the test after a while."""
        deadline = time.monotonic() + PATIENCE_S
        left = text(
            "SELECT (SELECT count(*) FROM jobs WHERE finished_at IS NULL)"
            " + (SELECT count(*) FROM work WHERE state IN ('queued', 'running'))"
        )
        while time.monotonic() < deadline:
            with self.sessions.begin() as session:
                recovery.reap(session)
                recovery.wake_idle_jobs(session)
                if session.scalar(left) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("some jobs have not ended")

    def until_served(self, count: int) -> None:
        """Fails the test after a while."""
        deadline = time.monotonic() + PATIENCE_S
        while self.served < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.served >= count

    def _run(self, owner: str) -> None:
        while not self._stop.is_set():
            with self.sessions.begin() as session:
                claim = ledger.claim_next(session, QUEUES, owner)
            if claim is None:
                self._stop.wait(0.02)
                continue
            try:
                with self.sessions.begin() as session:
                    serve(session, claim)
            except Fenced:
                continue
            self.served += 1


def serve(session: Session, claim: Claim) -> None:
    """Finish claimed work as workers do. Raises Fenced."""
    if claim.kind is WorkKind.PROPOSE:
        source = f"class ModelNew: name = {claim.candidate!r}\n"
        candidates.store_proposal(session, claim, Proposed(source, source_hash=repr(source)), queue="cpu")
    elif claim.kind is WorkKind.EVALUATE:
        candidates.start_evaluation(session, claim)
        candidates.store_evaluation(session, claim, report())
    elif claim.kind is WorkKind.ADVANCE:
        _advance(session, claim)
    else:
        ledger.settle(session, claim)


def _advance(session: Session, claim: Claim) -> None:
    events.lock_job(session, claim.job_id)
    ledger.settle(session, claim)
    in_flight = (CandidateState.PROPOSING.value, CandidateState.QUEUED.value, CandidateState.EVALUATING.value)
    query = select(Candidate.id).where(Candidate.job_id == claim.job_id, Candidate.state.in_(in_flight)).limit(1)
    job = jobs.fetch_job(session, claim.job_id)
    if job.cancel_requested:
        jobs.finish_job(session, claim.job_id, StopReason.CANCELLED)
    elif session.scalar(query) is None:
        jobs.finish_job(session, claim.job_id, StopReason.EXHAUSTED)


_UNSOUND = {
    "jobs that have not ended, or do not say why": "SELECT id FROM jobs"
    " WHERE finished_at IS NULL OR stop_reason IS NULL OR state NOT IN ('succeeded', 'failed', 'cancelled')",
    "jobs that did not end once": "SELECT job_id FROM events GROUP BY job_id"
    " HAVING count(*) FILTER (WHERE type = 'job.finished') <> 1",
    "jobs whose version is not their events": "SELECT id FROM jobs WHERE version <>"
    " 1 + (SELECT count(*) FROM events WHERE job_id = jobs.id)",
    "candidates in flight": "SELECT id FROM candidates WHERE state IN ('proposing', 'queued', 'evaluating')",
    "candidates without their one evaluation, or with one too many": "SELECT id FROM candidates"
    " WHERE (state = 'evaluated')::int <> (SELECT count(*) FROM evaluations WHERE candidate_id = candidates.id)",
    "evaluations whose work did not end": "SELECT e.id FROM evaluations AS e WHERE NOT EXISTS (SELECT FROM work"
    " WHERE work.candidate_id = e.candidate_id AND kind = 'evaluate' AND state IN ('done', 'dead'))",
    "work that was done and left nothing": "SELECT id FROM work WHERE kind = 'evaluate' AND state = 'done'"
    " AND NOT EXISTS (SELECT FROM evaluations AS e WHERE e.candidate_id = work.candidate_id)",
    "work in flight": "SELECT id FROM work WHERE state IN ('queued', 'running')",
    "jobs whose cost is not that of their calls": "SELECT id FROM jobs WHERE cost_usd <>"
    " coalesce((SELECT sum(cost_usd) FROM llm_calls WHERE job_id = jobs.id), 0)",
    "answers of record to one question": "SELECT candidate_id FROM llm_calls WHERE state = 'finished'"
    " GROUP BY candidate_id, key HAVING count(*) > 1",
    "jobs whose device time is not that of their evaluations": "SELECT id FROM jobs WHERE gpu_s <>"
    " coalesce((SELECT sum(gpu_s) FROM evaluations WHERE job_id = jobs.id), 0)",
}


def assert_sound(sessions: Sessions) -> None:
    """After all jobs have ended: nothing is lost, and nothing counts twice."""
    with sessions.begin() as session:
        found = {what: list(session.scalars(text(query))) for what, query in _UNSOUND.items()}
    wrong = {what: ids for what, ids in found.items() if ids}
    assert not wrong, str(wrong)
