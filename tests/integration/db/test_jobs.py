"""Jobs in rows: created once for a key, listed by cursor, cancelled, finished with a champion."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from db import jobs
from db.jobs import IdempotencyKey, IdempotencyMismatch, JobFilter, JobNotFound
from db.paging import InvalidCursor
from db.vocabulary import StopReason, WorkKind
from tests.support.ledger import (
    claim_kind,
    evaluate,
    event_types,
    fresh,
    make_candidates,
    make_job,
    new_job,
    propose,
    rung,
    states,
)

Sessions = sessionmaker[Session]


def test_a_created_job_has_its_problem_its_event_and_an_advance(sessions: Sessions) -> None:
    asked = new_job(
        budget_usd=Decimal("5.25"), models=("openai/gpt-5",), labels={"team": "x"}, problem_spec={"summary": "s"}
    )
    with sessions.begin() as session:
        created = jobs.create_job(session, asked)
        assert rung(session) == ["advance"]
    assert not created.replayed
    with sessions.begin() as session:
        job = jobs.fetch_job(session, created.job.id)
        problem = jobs.get_problem(session, job.problem_hash)
    assert problem is not None and (problem.source, problem.spec) == (asked.problem_source, {"summary": "s"})
    assert (job.state, job.budget_usd, job.models, job.labels) == (
        "queued",
        Decimal("5.25"),
        ["openai/gpt-5"],
        {"team": "x"},
    )
    assert event_types(sessions, job.id) == ["job.created"]
    assert job.created_at.utcoffset() == timedelta(0)


def test_one_problem_is_stored_once(sessions: Sessions) -> None:
    make_job(sessions)
    make_job(sessions)
    with sessions.begin() as session:
        assert session.execute(text("SELECT count(*) FROM problems")).scalar_one() == 1


def test_twenty_requests_with_one_key_make_one_job(sessions: Sessions) -> None:
    key = IdempotencyKey("k1", "body")

    def create(_: int) -> tuple[str, bool]:
        with sessions.begin() as session:
            created = jobs.create_job(session, new_job(), key)
            return created.job.id, created.replayed

    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(create, range(20)))
    assert len({job_id for job_id, _ in made}) == 1
    assert [replayed for _, replayed in made].count(False) == 1
    assert states(sessions, WorkKind.ADVANCE) == ["queued"]


def test_another_body_under_the_key_is_refused_until_the_key_is_a_day_old(sessions: Sessions) -> None:
    with sessions.begin() as session:
        first = jobs.create_job(session, new_job(), IdempotencyKey("k1", "body")).job
    with pytest.raises(IdempotencyMismatch, match="another request"), sessions.begin() as session:
        jobs.create_job(session, new_job(), IdempotencyKey("k1", "another body"))
    with sessions.begin() as session:
        session.execute(text("UPDATE idempotency_keys SET created_at = now() - interval '25 hours'"))
    with sessions.begin() as session:
        second = jobs.create_job(session, new_job(), IdempotencyKey("k1", "another body"))
    assert not second.replayed and second.job.id != first.id


def test_a_cursor_sees_each_job_once_while_others_are_inserted(sessions: Sessions) -> None:
    made = [make_job(sessions).id for _ in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        with sessions.begin() as session:
            page = jobs.list_jobs(session, limit=2, cursor=cursor)
        seen += [job.id for job in page.items]
        make_job(sessions)
        cursor = page.next_cursor
        if not page.has_more:
            break
    assert seen == made[::-1]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (JobFilter(), 3),
        (JobFilter(state="queued"), 2),
        (JobFilter(problem="matmul"), 1),
        (JobFilter(hardware="nvidia-h100", language="triton"), 1),
        (JobFilter(labels={"team": "x"}), 2),
        (JobFilter(labels={"team": "x", "run": "2"}), 1),
        (JobFilter(created_after=datetime.now(UTC) + timedelta(hours=1)), 0),
    ],
)
def test_jobs_are_filtered(sessions: Sessions, where: JobFilter, found: int) -> None:
    make_job(sessions, labels={"team": "x"})
    make_job(sessions, labels={"team": "x", "run": "2"}, hardware="nvidia-h100", language="triton")
    ended = make_job(sessions, problem_name="matmul")
    with sessions.begin() as session:
        jobs.finish_job(session, ended.id, StopReason.EXHAUSTED)
    with sessions.begin() as session:
        assert len(jobs.list_jobs(session, where).items) == found


@pytest.mark.parametrize("cursor", ["", "nonsense", "W10", "WyJub3QgYSBkYXRlIiwgImpvYl8xIl0", "é"])
def test_a_foreign_cursor_is_refused(sessions: Sessions, cursor: str) -> None:
    with pytest.raises(InvalidCursor), sessions.begin() as session:
        jobs.list_jobs(session, cursor=cursor)


def test_a_cancel_is_asked_for_once(sessions: Sessions) -> None:
    job = make_job(sessions)
    claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        assert jobs.cancel_job(session, job.id, "a typo")
        assert rung(session) == ["advance"]
    with sessions.begin() as session:
        assert not jobs.cancel_job(session, job.id)
        assert rung(session) == []
    after = fresh(sessions, job)
    assert (after.state, after.cancel_requested) == ("cancelling", True)
    assert event_types(sessions, job.id) == ["job.created", "job.cancel_requested"]


def test_cancelling_nothing_is_an_error(sessions: Sessions) -> None:
    with pytest.raises(JobNotFound), sessions.begin() as session:
        jobs.cancel_job(session, "job_nobody")


def test_a_finished_job_keeps_its_champion_and_drops_the_rest(sessions: Sessions) -> None:
    job = make_job(sessions)
    slow, fast, waiting, proposing = make_candidates(sessions, job, 4)
    for candidate_id in (slow, fast, waiting):
        propose(sessions, candidate_id)
    evaluate(sessions, slow, speedup=1.1)
    evaluate(sessions, fast, speedup=2.5)
    with sessions.begin() as session:
        assert jobs.finish_job(session, job.id, StopReason.TARGET_REACHED)
    after = fresh(sessions, job)
    assert (after.state, after.stop_reason, after.best_candidate_id) == ("succeeded", "target_reached", fast)
    assert after.finished_at is not None
    with sessions.begin() as session:
        assert session.execute(text("SELECT candidate_id, speedup FROM kernels")).one() == (fast, 2.5)
        progress = jobs.job_progress(session, [job.id])[job.id]
    assert progress.by_state == {"evaluated": 2, "cancelled": 2}
    assert states(sessions, WorkKind.PROPOSE)[-1] == "cancelled"
    assert states(sessions, WorkKind.EVALUATE) == ["done", "done", "cancelled"]
    assert event_types(sessions, job.id)[-1] == "job.finished"
    with sessions.begin() as session:
        assert not jobs.finish_job(session, job.id, StopReason.CANCELLED)
    assert fresh(sessions, job).state == "succeeded"


@pytest.mark.parametrize(
    ("verdict", "why", "state"),
    [
        ("incorrect", StopReason.BUDGET_CANDIDATES, "failed"),
        ("ok", StopReason.ERROR, "succeeded"),
        ("ok", StopReason.CANCELLED, "cancelled"),
    ],
)
def test_how_a_job_ends(sessions: Sessions, verdict: str, why: StopReason, state: str) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    evaluate(sessions, candidate_id, verdict=verdict)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, why)
        kernels = session.execute(text("SELECT count(*) FROM kernels")).scalar_one()
    assert fresh(sessions, job).state == state
    assert kernels == (verdict == "ok")


def test_progress_counts_and_shows_the_best(sessions: Sessions) -> None:
    job = make_job(sessions)
    other = make_job(sessions)
    good, bad, _ = make_candidates(sessions, job, 3)
    for candidate_id in (good, bad):
        propose(sessions, candidate_id)
    evaluate(sessions, good, speedup=1.5, baseline="eager")
    evaluate(sessions, bad, verdict="incorrect", speedup=None)
    with sessions.begin() as session:
        found = jobs.job_progress(session, [job.id, other.id, "job_nobody"])
    progress = found[job.id]
    assert progress.candidates == 3
    assert progress.by_state == {"evaluated": 2, "proposing": 1}
    assert progress.by_verdict == {"ok": 1, "incorrect": 1}
    assert progress.best is not None
    assert (progress.best.candidate_id, progress.best.speedup, progress.best.baseline) == (good, 1.5, "eager")
    assert found[other.id].candidates == found["job_nobody"].candidates == 0


def test_the_version_grows_with_every_visible_change(sessions: Sessions) -> None:
    job = make_job(sessions)
    versions = [fresh(sessions, job).version]
    (candidate_id,) = make_candidates(sessions, job)
    versions.append(fresh(sessions, job).version)
    propose(sessions, candidate_id)
    versions.append(fresh(sessions, job).version)
    evaluate(sessions, candidate_id)
    versions.append(fresh(sessions, job).version)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.EXHAUSTED)
    versions.append(fresh(sessions, job).version)
    assert versions == sorted(set(versions))


def test_starting_starts_the_clock_once(sessions: Sessions) -> None:
    job = make_job(sessions)
    with sessions.begin() as session:
        jobs.start_job(session, jobs.fetch_job(session, job.id))
    started = fresh(sessions, job)
    with sessions.begin() as session:
        jobs.start_job(session, jobs.fetch_job(session, job.id))
    assert started.state == "running" and started.started_at is not None
    assert fresh(sessions, job).started_at == started.started_at
    assert event_types(sessions, job.id) == ["job.created", "job.started"]


def test_a_state_outside_the_vocabulary_is_refused_by_the_database(sessions: Sessions) -> None:
    make_job(sessions)
    with pytest.raises(IntegrityError, match="ck_jobs_state"), sessions.begin() as session:
        session.execute(text("UPDATE jobs SET state = 'done-ish'"))
