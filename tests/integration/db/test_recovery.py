"""What becomes of work that nobody will finish, and of the job that waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, jobs, ledger, recovery
from db.ledger import Claim
from db.models import Job
from db.recovery import Reaped
from db.vocabulary import StopReason, WorkKind, WorkState
from tests.support.ledger import (
    OWNER,
    claim_kind,
    event_types,
    expire,
    fresh,
    make_candidates,
    make_job,
    propose,
    rung,
    states,
)

Sessions = sessionmaker[Session]


def reap(sessions: Sessions) -> Reaped:
    with sessions.begin() as session:
        return recovery.reap(session)


def use_up(sessions: Sessions, kind: WorkKind, attempts: int = 3) -> None:
    """Let every attempt of a kind's work end in a lost lease."""
    for _ in range(attempts):
        expire(sessions, claim_kind(sessions, kind))
        reap(sessions)


def test_an_expired_lease_is_taken_back_and_rung(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    assert reap(sessions) == Reaped()
    expire(sessions, claim)
    with sessions.begin() as session:
        assert recovery.reap(session) == Reaped(requeued=1)
        assert rung(session) == ["propose"]
    again = claim_kind(sessions, WorkKind.PROPOSE)
    assert (again.id, again.attempt) == (claim.id, 2)
    assert again.token != claim.token
    assert event_types(sessions, job.id)[-1] == "work.requeued"


def test_an_evaluation_that_kills_its_worker_three_times_is_an_infra_error_and_the_job_goes_on(
    sessions: Sessions,
) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    claim_kind(sessions, WorkKind.ADVANCE)
    use_up(sessions, WorkKind.EVALUATE)
    assert states(sessions, WorkKind.EVALUATE) == ["dead"]
    with sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None and row.evaluation is not None
    assert row.candidate.state == "evaluated"
    assert row.evaluation.verdict == "infra_error"
    assert "ran out" in (row.evaluation.reason or "")
    assert states(sessions, WorkKind.ADVANCE) == ["running", "queued"]
    assert fresh(sessions, job).best_candidate_id is None


def test_a_proposal_that_kills_its_worker_three_times_is_rejected(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    use_up(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None
    assert (row.candidate.state, row.candidate.failure) == ("rejected", "provider_error")
    assert row.evaluation is None


def test_an_advance_that_never_survives_ends_the_job_as_an_error(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    use_up(sessions, WorkKind.ADVANCE, attempts=10)
    after = fresh(sessions, job)
    assert (after.state, after.stop_reason) == ("failed", "error")
    assert "could not advance" in (after.error or "")
    assert states(sessions, WorkKind.PROPOSE) == ["cancelled"]


def test_an_expired_advance_replaces_the_one_that_was_queued_meanwhile(sessions: Sessions) -> None:
    job = make_job(sessions)
    claim = claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        jobs.enqueue_advance(session, job.id)
    expire(sessions, claim)
    assert reap(sessions) == Reaped(requeued=1)
    assert states(sessions, WorkKind.ADVANCE) == ["queued", "cancelled"]


def test_work_that_is_given_back_waits_and_comes_again(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        assert recovery.give_back(session, claim, "it broke\x00", delay_s=60) is WorkState.QUEUED
        assert rung(session) == []
    with sessions.begin() as session:
        assert ledger.claim_next(session, ["cpu"], OWNER) is None
        assert session.execute(text("SELECT error FROM work WHERE kind = 'propose'")).scalar_one() == "it broke\ufffd"
        session.execute(text("UPDATE work SET not_before = now()"))
    assert claim_kind(sessions, WorkKind.PROPOSE).attempt == 2


def give_back(sessions: Sessions, *, count_attempt: bool) -> tuple[Claim, WorkState]:
    claim = claim_kind(sessions, WorkKind.EVALUATE)
    with sessions.begin() as session:
        return claim, recovery.give_back(session, claim, "no GPU", count_attempt=count_attempt)


def test_a_fault_of_the_machine_costs_no_attempt_for_a_few_times(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    returns = [give_back(sessions, count_attempt=False) for _ in range(ledger.MAX_RETURNS + 1)]
    assert [claim.attempt for claim, _ in returns] == [1] * (ledger.MAX_RETURNS + 1)
    assert [state.value for _, state in returns] == ["queued"] * ledger.MAX_RETURNS + ["dead"]
    with sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None and row.evaluation is not None
    assert (row.evaluation.verdict, row.evaluation.reason) == ("infra_error", "no GPU")


def test_what_a_stopping_worker_gives_back_costs_nothing_however_often_it_happens(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    for _stop in range(2 * ledger.MAX_RETURNS):
        claim = claim_kind(sessions, WorkKind.EVALUATE)
        assert claim.attempt == 1
        with sessions.begin() as session:
            assert recovery.release(session, OWNER, "it stopped") == [claim.id]
            assert rung(session) == ["evaluate"]
    assert states(sessions, WorkKind.EVALUATE) == ["queued"]
    assert event_types(sessions, job.id)[-1] == "work.returned"


def test_a_stopping_worker_gives_back_its_own_only_and_is_fenced_off_then(sessions: Sessions) -> None:
    job = make_job(sessions)
    mine, theirs = make_candidates(sessions, job, count=2)
    propose(sessions, mine)
    propose(sessions, theirs)
    claim = claim_kind(sessions, WorkKind.EVALUATE)
    other = claim_kind(sessions, WorkKind.EVALUATE)
    with sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_owner = 'another' WHERE id = :id"), {"id": other.id})
    with sessions.begin() as session:
        assert recovery.release(session, OWNER, "it stopped") == [claim.id]
    with sessions.begin() as session:
        assert not ledger.finish(session, claim)
        assert ledger.finish(session, other)


def test_a_stopping_worker_gives_back_an_advance_that_was_asked_for_again_meanwhile(sessions: Sessions) -> None:
    job = make_job(sessions)
    claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        jobs.enqueue_advance(session, job.id)
    with sessions.begin() as session:
        assert len(recovery.release(session, OWNER, "it stopped")) == 1
    assert states(sessions, WorkKind.ADVANCE) == ["queued", "cancelled"]


def test_counted_failures_use_up_the_attempts(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    results = [give_back(sessions, count_attempt=True)[1].value for _ in range(3)]
    assert results == ["queued", "queued", "dead"]
    assert event_types(sessions, job.id)[-1] == "work.dead"


def test_many_reapers_take_each_lease_once(sessions: Sessions) -> None:
    for _ in range(5):
        job = make_job(sessions)
        for claim in _claims(sessions, job):
            expire(sessions, claim)
    barrier = threading.Barrier(4)

    def reaper(_: int) -> int:
        barrier.wait()
        return reap(sessions).requeued

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(reaper, range(4))) == 20


def _claims(sessions: Sessions, job: Job) -> list[Claim]:
    return [claim_kind(sessions, WorkKind.PROPOSE, candidate_id) for candidate_id in make_candidates(sessions, job, 4)]


def test_one_reaper_works_at_a_time(sessions: Sessions) -> None:
    with sessions.begin() as first, sessions.begin() as second:
        assert recovery.be_the_reaper(first)
        assert not recovery.be_the_reaper(second)
    with sessions.begin() as later:
        assert recovery.be_the_reaper(later)


def test_a_job_without_work_is_woken(sessions: Sessions) -> None:
    job = make_job(sessions)
    claim = claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        assert recovery.wake_idle_jobs(session) == []
    with sessions.begin() as session:
        ledger.finish(session, claim)
    with sessions.begin() as session:
        assert recovery.wake_idle_jobs(session) == [job.id]
        assert rung(session) == ["advance"]
    with sessions.begin() as session:
        assert recovery.wake_idle_jobs(session) == []


def test_a_job_whose_wall_clock_ran_out_in_silence_is_woken(sessions: Sessions) -> None:
    job = make_job(sessions, budget_wall_s=30.0)
    make_candidates(sessions, job)
    claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        jobs.start_job(session, jobs.fetch_job(session, job.id))
        ledger.finish(session, claim_kind(sessions, WorkKind.ADVANCE))
    with sessions.begin() as session:
        assert recovery.wake_idle_jobs(session) == []
        session.execute(text("UPDATE jobs SET started_at = now() - interval '31 seconds'"))
    with sessions.begin() as session:
        assert recovery.wake_idle_jobs(session) == [job.id]


def test_a_finished_job_is_left_alone(sessions: Sessions) -> None:
    job = make_job(sessions)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.EXHAUSTED)
    with sessions.begin() as session:
        assert recovery.wake_idle_jobs(session) == []


def test_a_fenced_writer_is_counted_in_the_events(sessions: Sessions) -> None:
    job = make_job(sessions)
    claim = claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        recovery.record_fenced(session, claim)
    assert event_types(sessions, job.id) == ["job.created", "work.fenced"]


@pytest.mark.parametrize("kind", [WorkKind.PROPOSE, WorkKind.EVALUATE])
def test_burying_work_of_a_finished_job_changes_nothing(sessions: Sessions, kind: WorkKind) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    if kind is WorkKind.EVALUATE:
        propose(sessions, candidate_id)
    claim = claim_kind(sessions, kind)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.BUDGET_WALL)
    expire(sessions, claim)
    assert reap(sessions) == Reaped()
    with sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None and row.candidate.state == "cancelled" and row.evaluation is None
