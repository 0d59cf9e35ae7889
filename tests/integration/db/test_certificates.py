"""Certificates in rows: what a job whose search has ended waits for, and who is its best after a refusal."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import admitting, certificates, jobs, ledger, recovery
from db.certificates import Step
from db.finishing import end_search
from db.ledger import Fenced
from db.models import Certificate, Job
from db.vocabulary import StopReason, WorkKind
from tests.support.ledger import (
    claim_kind,
    evaluate,
    event_types,
    expire,
    fresh,
    make_candidates,
    make_job,
    propose,
    states,
)
from worker.judge.certificate.document import document_hash, is_intact

Sessions = sessionmaker[Session]


def document(**found: Any) -> dict[str, Any]:
    """As much of a certificate as the database looks at, with what JSONB and UTF-8 would change."""
    figures = {"large": 1e22, "small": 1e-7, "negative": -0.0, "text": "\ud800 \x00 é"}
    body = {"certified": True, "verdict": "ok", "reason": "", "reservations": ["one"], "figures": figures} | found
    return body | {"sha256": document_hash(body)}


REFUSAL = {"certified": False, "verdict": "incorrect", "reason": "a fresh judgement failed"}


def judged(sessions: Sessions, *speedups: float | None, **overrides: Any) -> tuple[Job, list[str]]:
    """A job whose candidates were accepted with these speedups; their ids."""
    job = make_job(sessions, **{"certify": True} | overrides)
    ids = make_candidates(sessions, job, len(speedups))
    for candidate_id, speedup in zip(ids, speedups, strict=True):
        propose(sessions, candidate_id)
        evaluate(sessions, candidate_id, speedup=speedup, timed=speedup is not None)
    return job, ids


def step(sessions: Sessions, job: Job) -> Step:
    with sessions.begin() as session:
        return certificates.next_step(session, jobs.fetch_job(session, job.id))


def enqueue(sessions: Sessions, job: Job) -> None:
    with sessions.begin() as session:
        certificates.enqueue_certify(session, jobs.fetch_job(session, job.id))


def certify(sessions: Sessions, job: Job, **found: Any) -> Certificate:
    """The job's best, from a queued `certify` to its stored document."""
    enqueue(sessions, job)
    claim = claim_kind(sessions, WorkKind.CERTIFY)
    with sessions.begin() as session:
        return certificates.store_certificate(session, claim, document(**found), "<!doctype html>")


def test_the_best_is_certified_then_waited_for_then_the_job_may_end(sessions: Sessions) -> None:
    job, (best,) = judged(sessions, 1.5)
    assert step(sessions, job) is Step.CERTIFY
    enqueue(sessions, job)
    assert step(sessions, job) is Step.WAIT
    claim = claim_kind(sessions, WorkKind.CERTIFY)
    assert (claim.candidate_id, claim.queue) == (best, "cpu")
    assert step(sessions, job) is Step.WAIT
    with sessions.begin() as session:
        certificates.store_certificate(session, claim, document(), "page")
    assert step(sessions, job) is Step.FINISH
    assert fresh(sessions, job).best_candidate_id == best
    assert event_types(sessions, job.id)[-1] == "candidate.certified"
    assert "queued" in states(sessions, WorkKind.ADVANCE)


@pytest.mark.parametrize(
    ("speedups", "more"), [((), {}), ((None,), {}), ((1.5,), {"certify": False})], ids=["no best", "untimed", "unasked"]
)
def test_some_jobs_have_nothing_to_certify(
    sessions: Sessions, speedups: tuple[float | None, ...], more: dict[str, bool]
) -> None:
    job, _ = judged(sessions, *speedups, **more)
    assert step(sessions, job) is Step.FINISH


def test_nothing_is_certified_before_the_problem_was_examined(sessions: Sessions) -> None:
    job, _ = judged(sessions, 1.5, admit=True)
    assert step(sessions, job) is Step.WAIT
    with sessions.begin() as session:
        admitting.store_admission(session, claim_kind(sessions, WorkKind.ADMIT), "judge", {"verdict": "admitted"})
    assert step(sessions, job) is Step.CERTIFY


def test_a_job_without_a_best_does_not_wait_for_an_examination(sessions: Sessions) -> None:
    job, _ = judged(sessions, admit=True)
    assert step(sessions, job) is Step.FINISH


def test_the_document_comes_back_as_the_judge_wrote_it(sessions: Sessions) -> None:
    job, _ = judged(sessions, 1.5)
    certify(sessions, job)
    with sessions.begin() as session:
        found = certificates.job_certificate(session, jobs.fetch_job(session, job.id))
    assert found is not None and is_intact(found.document) and found.sha256 == found.document["sha256"]
    assert found.document["figures"]["text"] == "\ud800 \x00 é"


def test_a_refused_best_hands_its_place_to_the_next(sessions: Sessions) -> None:
    job, (slow, fast, wrong) = judged(sessions, 1.5, 3.0, None)
    certify(sessions, job, **REFUSAL)
    after = fresh(sessions, job)
    assert (after.best_candidate_id, after.best_speedup) == (slow, 1.5)
    assert event_types(sessions, job.id)[-1] == "candidate.certificate_refused"
    assert step(sessions, job) is Step.CERTIFY
    certify(sessions, job)
    assert step(sessions, job) is Step.FINISH
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.STAGNATED)
        query = "SELECT candidate_id FROM kernels"
        assert session.execute(text(query)).scalars().all() == [slow]
    assert fresh(sessions, job).state == "succeeded"
    assert {fast, wrong} & {fresh(sessions, job).best_candidate_id} == set()


def test_after_three_refusals_the_job_has_no_best(sessions: Sessions) -> None:
    job, ids = judged(sessions, 1.1, 1.2, 1.3, 1.4)
    for expected in (ids[2], ids[1], None):
        certify(sessions, job, **REFUSAL)
        assert fresh(sessions, job).best_candidate_id == expected
    assert step(sessions, job) is Step.FINISH
    with sessions.begin() as session:
        reasons = certificates.refusals(session, job.id)
        assert certificates.job_certificate(session, jobs.fetch_job(session, job.id)) is None
        jobs.finish_job(session, job.id, StopReason.STAGNATED, certificates.no_champion(reasons))
    after = fresh(sessions, job)
    assert after.state == "failed"
    assert after.error == (
        "each of the 3 fastest candidates was refused its certificate; the last because: a fresh judgement failed"
    )
    with sessions.begin() as session:
        last = certificates.job_certificate(session, after)
    assert last is not None and last.candidate_id == ids[1]


def test_the_search_ends_before_its_job(sessions: Sessions) -> None:
    job, _ = judged(sessions, 1.5, admit=True)
    (waiting,) = make_candidates(sessions, job)
    with sessions.begin() as session:
        end_search(session, jobs.fetch_job(session, job.id), StopReason.TARGET_REACHED)
    after = fresh(sessions, job)
    assert (after.stop_reason, after.finished_at) == ("target_reached", None)
    assert states(sessions, WorkKind.PROPOSE) == ["done", "cancelled"]
    assert states(sessions, WorkKind.ADMIT) == ["queued"]
    with sessions.begin() as session:
        query = "SELECT state FROM candidates WHERE id = :id"
        assert session.execute(text(query), {"id": waiting}).scalar_one() == "cancelled"
    assert event_types(sessions, job.id)[-1] == "job.search_ended"


def test_a_late_certificate_is_fenced_and_the_work_comes_again(sessions: Sessions) -> None:
    job, (best,) = judged(sessions, 1.5)
    enqueue(sessions, job)
    claim = claim_kind(sessions, WorkKind.CERTIFY)
    expire(sessions, claim)
    with sessions.begin() as session:
        assert recovery.reap(session).requeued == 1
    with pytest.raises(Fenced), sessions.begin() as session:
        certificates.store_certificate(session, claim, document(), "page")
    with sessions.begin() as session:
        assert session.execute(text("SELECT count(*) FROM certificates")).scalar_one() == 0
    again = claim_kind(sessions, WorkKind.CERTIFY)
    assert (again.candidate_id, again.attempt) == (best, 2)


def test_a_machine_that_fails_for_good_leaves_the_best_without_a_certificate(sessions: Sessions) -> None:
    job, (best,) = judged(sessions, 1.5)
    enqueue(sessions, job)
    for _ in range(ledger.MAX_RETURNS + 1):
        claim = claim_kind(sessions, WorkKind.CERTIFY)
        with sessions.begin() as session:
            recovery.give_back(session, claim, "no GPU", count_attempt=False)
    assert states(sessions, WorkKind.CERTIFY) == ["dead"]
    assert step(sessions, job) is Step.FINISH
    assert fresh(sessions, job).best_candidate_id == best


def test_a_wall_clock_that_runs_out_during_the_certificate_wakes_nobody(sessions: Sessions) -> None:
    job, _ = judged(sessions, 1.5, budget_wall_s=30.0)
    with sessions.begin() as session:
        jobs.start_job(session, jobs.fetch_job(session, job.id))
        end_search(session, jobs.fetch_job(session, job.id), StopReason.BUDGET_WALL)
        session.execute(text("UPDATE work SET state = 'cancelled' WHERE kind = 'advance'"))
        session.execute(text("UPDATE jobs SET started_at = now() - interval '31 seconds'"))
    enqueue(sessions, job)
    with sessions.begin() as session:
        assert recovery.wake_idle_jobs(session) == []


def test_a_certificate_costs_its_job_device_time(sessions: Sessions) -> None:
    job, _ids = judged(sessions, 1.5)
    with sessions() as session:
        before_s = jobs.fetch_job(session, job.id).gpu_s
    certify(sessions, job, judge={"device_held_s": 12.5})
    with sessions() as session:
        assert jobs.fetch_job(session, job.id).gpu_s == pytest.approx(before_s + 12.5)
