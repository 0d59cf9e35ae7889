"""Two at once: who passes over what the other has locked, who waits, and what is looked at again after the wait."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, events, jobs, ledger, recovery
from db.candidates import NewCandidate
from db.jobs import CreatedJob, IdempotencyKey
from db.recovery import Reaped
from db.vocabulary import WorkKind
from tests.support.ledger import OWNER, claim_kind, expire, make_candidates, make_job, new_job, states

Sessions = sessionmaker[Session]
IMPATIENT = text("SET LOCAL lock_timeout = '3s'")
"""Whoever would wait for another's row fails instead."""


def until_somebody_waits(sessions: Sessions) -> None:
    """Until a transaction of this database waits for a lock."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with sessions.begin() as session:
            if session.scalar(waiting):
                return
        time.sleep(0.01)
    pytest.fail("nobody waits for a lock")


def reap(sessions: Sessions) -> Reaped:
    with sessions.begin() as session:
        session.execute(IMPATIENT)
        return recovery.reap(session)


def test_a_claim_passes_over_what_another_is_claiming(sessions: Sessions) -> None:
    first_id, second_id = make_candidates(sessions, make_job(sessions), 2)
    with sessions.begin() as first, sessions.begin() as second:
        second.execute(IMPATIENT)
        one = ledger.claim_next(first, ["cpu"], OWNER)
        two = ledger.claim_next(second, ["cpu"], OWNER)
    assert one is not None and two is not None
    assert (one.candidate, two.candidate) == (first_id, second_id)


def test_a_second_doorbell_does_not_wait_for_the_first(sessions: Sessions) -> None:
    make_job(sessions)
    with sessions.begin() as first, sessions.begin() as second:
        second.execute(IMPATIENT)
        one = ledger.claim_next(first, ["control"], OWNER)
        assert one is not None
        assert ledger.claim(second, one.id, "worker_2") is None


def work_id(sessions: Sessions, kind: WorkKind) -> str:
    with sessions.begin() as session:
        return str(session.execute(text("SELECT id FROM work WHERE kind = :kind"), {"kind": kind.value}).scalar_one())


def test_a_doorbell_that_rings_too_early_finds_nothing(sessions: Sessions) -> None:
    make_candidates(sessions, make_job(sessions), delay_s=60)
    with sessions.begin() as session:
        assert ledger.claim(session, work_id(sessions, WorkKind.PROPOSE), OWNER) is None
        session.execute(text("UPDATE work SET not_before = now()"))
        assert ledger.claim(session, work_id(sessions, WorkKind.PROPOSE), OWNER) is not None


def test_a_doorbell_of_a_job_that_is_being_cancelled_finds_nothing(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    with sessions.begin() as session:
        jobs.cancel_job(session, job.id)
        assert ledger.claim(session, work_id(sessions, WorkKind.PROPOSE), OWNER) is None
        assert ledger.claim(session, work_id(sessions, WorkKind.ADVANCE), OWNER) is not None


def test_a_lease_that_is_renewed_while_the_reaper_waits_is_left_alone(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    expire(sessions, claim)
    with ThreadPoolExecutor(1) as pool:
        with sessions.begin() as other:
            events.lock_job(other, job.id)
            reaping = pool.submit(reap, sessions)
            until_somebody_waits(sessions)  # the reaper has read whose leases ran out
            with sessions.begin() as session:
                assert ledger.renew(session, claim).held
        assert reaping.result(timeout=30) == Reaped()
    assert states(sessions, WorkKind.PROPOSE) == ["running"]


def test_a_reaper_does_not_lock_jobs_whose_leases_hold(sessions: Sessions) -> None:
    """Whoever writes to such a job would wait for it, and it for them."""
    lapsed, other = make_job(sessions), make_job(sessions)
    with sessions.begin() as session:
        claims = [ledger.claim_next(session, ["control"], OWNER) for _ in range(2)]
    mine = next(claim for claim in claims if claim is not None and claim.job_id == lapsed.id)
    expire(sessions, mine)
    with sessions.begin() as writer:
        events.lock_job(writer, other.id)
        assert reap(sessions) == Reaped(requeued=1)


def test_two_plans_of_one_job_number_their_candidates_one_after_the_other(sessions: Sessions) -> None:
    job = make_job(sessions)
    with ThreadPoolExecutor(1) as pool:
        with sessions.begin() as first:
            candidates.add_candidates(first, job, [NewCandidate("seed", "builtin", "cpu")])
            second = pool.submit(make_candidates, sessions, job)
            until_somebody_waits(sessions)
        second.result(timeout=30)
    with sessions.begin() as session:
        assert session.scalars(text("SELECT ordinal FROM candidates ORDER BY ordinal")).all() == [1, 2]


def test_the_second_of_two_requests_with_one_key_waits_for_the_first(sessions: Sessions) -> None:
    def create(session: Session) -> CreatedJob:
        return jobs.create_job(session, new_job(), IdempotencyKey("k1", "body"))

    def later() -> CreatedJob:
        with sessions.begin() as session:
            return create(session)

    with ThreadPoolExecutor(1) as pool:
        with sessions.begin() as first:
            made = create(first)
            second = pool.submit(later)
            until_somebody_waits(sessions)
        again = second.result(timeout=30)
    assert not made.replayed
    assert (again.job.id, again.replayed) == (made.job.id, True)
