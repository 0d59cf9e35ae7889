"""The ledger under real concurrency: one winner for each claim, late writers fenced, nothing stored twice."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, jobs, ledger, recovery
from db.ledger import Claim, Fenced
from db.vocabulary import WorkKind, WorkState
from tests.support.ledger import (
    OWNER,
    claim_kind,
    expire,
    fresh,
    make_candidates,
    make_job,
    propose,
    report,
    rung,
    states,
)

Sessions = sessionmaker[Session]


def test_an_enqueued_row_leaves_its_doorbell_in_the_session(sessions: Sessions) -> None:
    job = make_job(sessions)
    with sessions.begin() as session:
        (candidate_id,) = candidates.add_candidates(
            session, job, [candidates.NewCandidate("seed", "builtin", "gpu.nvidia-h100")]
        )
    (doorbell,) = ledger.take_doorbells(session)
    assert (doorbell.queue, doorbell.kind) == ("gpu.nvidia-h100", "propose")
    assert ledger.take_doorbells(session) == []
    with sessions.begin() as session:
        claim = ledger.claim(session, doorbell.work_id, OWNER)
    assert claim is not None and claim.candidate == candidate_id


def test_one_of_many_claimers_wins(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    barrier = threading.Barrier(8)

    def claim(number: int) -> Claim | None:
        with sessions.begin() as session:
            barrier.wait()
            return ledger.claim_next(session, ["cpu"], f"worker_{number}")

    with ThreadPoolExecutor(8) as pool:
        won = [claim for claim in pool.map(claim, range(8)) if claim is not None]
    assert len(won) == 1
    assert won[0].attempt == 1


def test_a_duplicate_doorbell_finds_nothing(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    first = claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        assert ledger.claim(session, first.id, "worker_2") is None
        assert ledger.claim_next(session, ["cpu"], "worker_2") is None
    with sessions.begin() as session:
        assert ledger.finish(session, first)
    with sessions.begin() as session:
        assert ledger.claim(session, first.id, "worker_2") is None


def test_the_highest_priority_comes_first_then_the_oldest(sessions: Sessions) -> None:
    low = make_job(sessions, priority=0)
    high = make_job(sessions, priority=5)
    (older, newer) = make_candidates(sessions, low, 2)
    (urgent,) = make_candidates(sessions, high)
    claimed = []
    for _ in range(3):
        with sessions.begin() as session:
            claim = ledger.claim_next(session, ["cpu"], OWNER)
            assert claim is not None
            claimed.append(claim.candidate)
    assert claimed == [urgent, older, newer]


def test_delayed_work_waits(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job, delay_s=60)
    with sessions.begin() as session:
        assert ledger.claim_next(session, ["cpu"], OWNER) is None
    with sessions.begin() as session:
        assert [doorbell.queue for doorbell in ledger.to_ring(session, 0)] == ["control"]
        session.execute(text("UPDATE work SET not_before = now() WHERE kind = 'propose'"))
    with sessions.begin() as session:
        assert [doorbell.queue for doorbell in ledger.to_ring(session)] == ["cpu"]
        assert ledger.claim_next(session, ["cpu"], OWNER) is not None


def test_a_job_has_one_queued_advance_and_may_get_another_while_one_runs(sessions: Sessions) -> None:
    job = make_job(sessions)
    with sessions.begin() as session:
        jobs.enqueue_advance(session, job.id)
        assert rung(session) == []
    claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        jobs.enqueue_advance(session, job.id)
        assert rung(session) == ["advance"]
    assert states(sessions, WorkKind.ADVANCE) == ["running", "queued"]


def test_a_candidate_cannot_be_evaluated_by_two_units_of_work(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    with pytest.raises(IntegrityError, match="uq_work_candidate_id_kind"), sessions.begin() as session:
        ledger.enqueue(session, kind=WorkKind.EVALUATE, queue="cpu", job_id=job.id, candidate_id=candidate_id)


def test_renewing_extends_the_lease_and_tells_of_a_cancel(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    expire(sessions, claim)
    with sessions.begin() as session:
        assert ledger.renew(session, claim) == ledger.Renewal(held=True, cancel_requested=False)
    with sessions.begin() as session:
        assert recovery.reap(session).requeued == 0
        jobs.cancel_job(session, job.id)
    with sessions.begin() as session:
        assert ledger.renew(session, claim) == ledger.Renewal(held=True, cancel_requested=True)


def test_work_of_a_job_that_is_being_cancelled_is_not_claimed_but_its_advance_is(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    with sessions.begin() as session:
        jobs.cancel_job(session, job.id)
        assert ledger.claim_next(session, ["cpu"], OWNER) is None
        claim = ledger.claim_next(session, ["cpu", "control"], OWNER)
        assert claim is not None and claim.kind is WorkKind.ADVANCE


def test_a_late_writer_is_fenced_and_its_result_is_not_stored(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    late = claim_kind(sessions, WorkKind.EVALUATE)
    expire(sessions, late)
    with sessions.begin() as session:
        assert recovery.reap(session).requeued == 1
    second = claim_kind(sessions, WorkKind.EVALUATE)
    assert second.attempt == 2
    with pytest.raises(Fenced), sessions.begin() as session:
        candidates.store_evaluation(session, late, report(speedup=99.0))
    with sessions.begin() as session:
        candidates.store_evaluation(session, second, report(speedup=1.25))
    with pytest.raises(Fenced), sessions.begin() as session:
        candidates.store_evaluation(session, second, report(speedup=2.0))
    with sessions.begin() as session:
        assert session.execute(text("SELECT speedup FROM evaluations")).scalars().all() == [1.25]
    assert fresh(sessions, job).best_speedup == 1.25
    assert fresh(sessions, job).gpu_s == 2.0


@pytest.mark.parametrize("late", ["renew", "give_back", "start", "propose", "finish"])
def test_every_other_late_move_is_refused(sessions: Sessions, late: str) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    expire(sessions, claim)
    with sessions.begin() as session:
        recovery.reap(session)
    claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        if late == "renew":
            assert not ledger.renew(session, claim).held
        elif late == "finish":
            assert not ledger.finish(session, claim)
        else:
            with pytest.raises(Fenced):
                _late_move(session, claim, late)


def _late_move(session: Session, claim: Claim, late: str) -> None:
    if late == "give_back":
        recovery.give_back(session, claim, "too late")
    elif late == "start":
        candidates.start_evaluation(session, claim)
    else:
        candidates.store_proposal(session, claim, candidates.Proposed("x = 1", source_hash="x"), queue="cpu")


def test_lost_doorbells_are_rung_again_and_no_other(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job, 3)
    with sessions.begin() as session:
        assert ledger.to_ring(session) == []  # they were rung just now, when they were enqueued
        session.execute(text("UPDATE work SET rung_at = now() - interval '1 minute' WHERE kind = 'propose'"))
    with sessions.begin() as session:
        assert len(ledger.to_ring(session, per_queue=2)) == 2
    with sessions.begin() as session:
        assert ledger.to_ring(session, per_queue=2) == []
        assert len(ledger.to_ring(session)) == 1
        assert ledger.to_ring(session) == []


def test_two_rounds_of_ringing_at_once_share_the_rows(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job, 20)
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET rung_at = NULL"))
    barrier = threading.Barrier(4)

    def ring(_: int) -> list[str]:
        with sessions.begin() as session:
            barrier.wait()
            return [doorbell.work_id for doorbell in ledger.to_ring(session)]

    with ThreadPoolExecutor(4) as pool:
        rung_ids = [work_id for ids in pool.map(ring, range(4)) for work_id in ids]
    assert len(rung_ids) == 21
    assert len(set(rung_ids)) == 21


def test_depths_count_what_waits(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job, 2)
    make_candidates(sessions, job, 1, delay_s=60)
    claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        depths = {depth.queue: depth for depth in ledger.depths(session)}
    assert (depths["cpu"].ready, depths["cpu"].delayed, depths["cpu"].running) == (1, 1, 1)
    assert depths["control"].ready == 1


class Crowd:
    """Workers that crash and come late, and reapers, until every evaluation is done."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.done = threading.Event()
        self.fenced: list[str] = []

    def work(self, number: int) -> None:
        """One claim in five is abandoned, one in six finished after its lease was given to another."""
        dice = random.Random(number)
        while not self.done.is_set():
            with self.sessions.begin() as session:
                claim = ledger.claim_next(session, ["cpu"], f"worker_{number}", lease_s=0.05)
            fate = dice.random()
            if claim is None or fate < 0.2:
                self.done.wait(0.01)
                continue
            if fate < 0.36:
                self._come_late(claim)
            self._finish(claim, dice.random())

    def _come_late(self, claim: Claim) -> None:
        """Until a reaper has taken the work away; on a busy machine it takes its time."""
        held = text("SELECT count(*) FROM work WHERE id = :id AND lease_token = :token")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with self.sessions.begin() as session:
                if not session.scalar(held, {"id": claim.id, "token": claim.token}):
                    return
            time.sleep(0.01)

    def _finish(self, claim: Claim, speedup: float) -> None:
        try:
            with self.sessions.begin() as session:
                candidates.store_evaluation(session, claim, report(speedup=speedup, gpu_s=1.0))
        except Fenced:
            self.fenced.append(claim.id)

    def reap(self) -> None:
        while not self.done.wait(0.02):
            with self.sessions.begin() as session:
                recovery.reap(session)
            if set(states(self.sessions, WorkKind.EVALUATE)) == {"done"}:
                self.done.set()


def test_workers_that_crash_and_come_late_store_one_evaluation_for_each_candidate(sessions: Sessions) -> None:
    job = make_job(sessions)
    for candidate_id in make_candidates(sessions, job, 40):
        propose(sessions, candidate_id)
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET max_attempts = 50 WHERE kind = 'evaluate'"))
    crowd = Crowd(sessions)
    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(crowd.work, number) for number in range(8)] + [pool.submit(crowd.reap) for _ in range(2)]
        for future in futures:
            future.result(timeout=120)
    with sessions.begin() as session:
        stored = session.execute(text("SELECT count(*), count(DISTINCT candidate_id), max(speedup) FROM evaluations"))
        total, distinct, best = stored.one()
    assert (total, distinct) == (40, 40)
    assert crowd.fenced  # or this test shows nothing
    after = fresh(sessions, job)
    assert (after.gpu_s, after.best_speedup) == (40.0, best)


def test_finish_can_end_work_as_cancelled(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        assert ledger.finish(session, claim, state=WorkState.CANCELLED)
    assert states(sessions, WorkKind.PROPOSE) == ["cancelled"]
