"""The lease while work is done: kept, lost, cancelled, and out of reach of the database."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from db import jobs, recovery
from db.ledger import Claim, Fenced
from db.vocabulary import StopReason, WorkKind
from tests.support.ledger import claim_kind, expire, make_candidates, make_job
from worker.heartbeat import CancelRequested, Lease

Sessions = sessionmaker[Session]


@pytest.fixture
def claim(sessions: Sessions) -> Claim:
    make_candidates(sessions, make_job(sessions))
    return claim_kind(sessions, WorkKind.PROPOSE)


class Work:
    """Something that runs until it is interrupted."""

    def __init__(self) -> None:
        self.interruption = threading.Event()

    def __call__(self) -> None:
        self.interruption.set()

    def wait(self) -> bool:
        return self.interruption.wait(20)


def test_a_lease_outlives_its_length_while_the_work_runs(sessions: Sessions, claim: Claim) -> None:
    work = Work()
    with Lease(sessions, claim, interrupt=work, lease_s=4, renew_s=0.1) as lease:
        for _ in range(5):
            assert not work.interruption.wait(1)
            with sessions.begin() as session:
                assert recovery.reap(session).requeued == 0
    lease.check()
    assert not lease.interrupted


def test_a_lost_lease_interrupts_the_work(sessions: Sessions, claim: Claim) -> None:
    work = Work()
    with Lease(sessions, claim, interrupt=work, lease_s=60, renew_s=0.1) as lease:
        expire(sessions, claim)
        with sessions.begin() as session:
            session.execute(text("UPDATE work SET lease_token = gen_random_uuid() WHERE id = :id"), {"id": claim.id})
        assert work.wait()
    with pytest.raises(Fenced):
        lease.check()


def test_work_that_had_nothing_to_interrupt_yet_is_interrupted_again(sessions: Sessions, claim: Claim) -> None:
    """Between two questions to a judge there is no process to kill, and the second would go on to its own deadline."""
    calls: list[float] = []
    second = threading.Event()

    def interrupt() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            second.set()

    with Lease(sessions, claim, interrupt=interrupt, lease_s=60, renew_s=0.1):
        with sessions.begin() as session:
            jobs.cancel_job(session, claim.job_id)
        assert second.wait(20)
    ended = len(calls)
    time.sleep(1.5)
    assert len(calls) == ended, "the block has ended"


def test_work_that_never_ends_loses_its_lease(sessions: Sessions, claim: Claim) -> None:
    work = Work()
    with Lease(sessions, claim, interrupt=work, lease_s=60, renew_s=0.1, longest_s=0.5) as lease:
        assert work.wait()
    with pytest.raises(Fenced):
        lease.check()


def test_a_cancel_interrupts_the_work(sessions: Sessions, claim: Claim) -> None:
    work = Work()
    with Lease(sessions, claim, interrupt=work, renew_s=0.1) as lease:
        with sessions.begin() as session:
            jobs.cancel_job(session, claim.job_id)
        assert work.wait()
    with pytest.raises(CancelRequested):
        lease.check()


def test_the_end_of_the_job_interrupts_the_work(sessions: Sessions, claim: Claim) -> None:
    work = Work()
    with Lease(sessions, claim, interrupt=work, renew_s=0.1) as lease:
        with sessions.begin() as session:
            jobs.finish_job(session, claim.job_id, StopReason.TARGET_REACHED)
        assert work.wait()
    with pytest.raises(Fenced):
        lease.check()


def test_a_database_that_stays_away_longer_than_the_lease_interrupts_the_work(
    sessions: Sessions, claim: Claim, admin: Engine, module_database: str
) -> None:
    work = Work()
    with admin.connect() as connection, Lease(sessions, claim, interrupt=work, lease_s=1, renew_s=0.1) as lease:
        connection.execute(text(f"ALTER DATABASE {module_database} ALLOW_CONNECTIONS false"))
        kick = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        connection.execute(kick, {"name": module_database})
        interrupted = work.wait()
        connection.execute(text(f"ALTER DATABASE {module_database} ALLOW_CONNECTIONS true"))
    assert interrupted
    with pytest.raises(Fenced):
        lease.check()


def test_a_short_absence_of_the_database_is_survived(
    sessions: Sessions, claim: Claim, admin: Engine, module_database: str
) -> None:
    work = Work()
    with admin.connect() as connection, Lease(sessions, claim, interrupt=work, lease_s=60, renew_s=0.1) as lease:
        kick = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        for _ in range(3):
            connection.execute(kick, {"name": module_database})
            assert not work.interruption.wait(0.3)
    lease.check()
