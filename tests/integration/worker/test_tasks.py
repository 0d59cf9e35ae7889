"""The task wrapper and the reaper's round, without Celery around them."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator, Mapping

import pytest
import structlog
from redis import Redis
from sqlalchemy import text

from db import jobs, recovery, workers
from db.ledger import Claim, Fenced
from db.logging import configure_logging
from db.models import Job
from db.vocabulary import WorkerState, WorkKind
from db.workers import WorkerFacts
from tests.support.ledger import (
    claim_kind,
    event_types,
    expire,
    fresh,
    make_candidates,
    make_job,
    new_job,
    propose,
    states,
)
from worker import client, reaping, runtime, tasks
from worker.app import app
from worker.heartbeat import CancelRequested, Lease
from worker.runtime import Runtime


@pytest.fixture(autouse=True)
def current(here: Runtime, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    monkeypatch.setattr(runtime, "_current", here)
    return here


def waiting(broker: Redis, queue: str) -> int:
    length = broker.llen(f"{client.KEY_PREFIX}{queue}")
    assert isinstance(length, int)
    return length


def test_a_doorbell_serves_the_most_urgent_work_whatever_it_names(here: Runtime, broker: Redis) -> None:
    make_job(here.sessions)
    urgent = make_job(here.sessions, priority=9)
    tasks.serve("work_that_never_was")
    assert fresh(here.sessions, urgent).state == "running"
    assert states(here.sessions, WorkKind.ADVANCE) == ["queued", "done"]
    assert waiting(broker, "cpu") == 2  # rung after the commit, for the two candidates


@pytest.mark.parametrize("state", [WorkerState.DRAINING, WorkerState.QUARANTINED])
def test_a_worker_at_rest_passes_on_the_doorbells_that_it_hears_while_there_is_work(
    here: Runtime, broker: Redis, state: WorkerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "PASS_ON_S", 0.0)
    with here.sessions.begin() as session:
        workers.register(session, WorkerFacts(here.owner, "box", 1, here.queues))
        workers.set_state(session, here.owner, state)
        workers.register(session, WorkerFacts("worker_other", "box", 2, ("control",)))
    tasks.serve("work_that_never_was")
    assert waiting(broker, "control") == 0
    job = make_job(here.sessions)
    for other, rung in ((state, 0), (WorkerState.ACTIVE, 1)):
        with here.sessions.begin() as session:
            workers.set_state(session, "worker_other", other)
        tasks.serve("work_that_never_was")
        assert waiting(broker, "control") == rung, "for those who take it alone"
    assert fresh(here.sessions, job).state == "queued"


def test_a_worker_that_takes_work_keeps_the_doorbells_that_find_none(here: Runtime, broker: Redis) -> None:
    make_job(here.sessions)
    claimed = tasks._claim(here)
    assert claimed is not None
    tasks.serve(claimed.id)
    assert waiting(broker, "control") == 0


def test_a_worker_stays_with_a_job_for_a_while_and_then_takes_the_oldest_work(
    here: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all work has waited for long: then most of all it is to be got through."""
    served: list[str] = []
    now = 1000.0
    monkeypatch.setattr("worker.runtime.time.monotonic", lambda: now)

    def judge(here: Runtime, claim: Claim) -> None:
        nonlocal now
        served.append(claim.job_id)
        here.stay_with(claim.job_id)
        now += 25

    monkeypatch.setattr(tasks, "HANDLERS", {WorkKind.EVALUATE: judge})
    older, newer = make_job(here.sessions), make_job(here.sessions)
    ids = [make_candidates(here.sessions, job, 4) for job in (older, newer)]
    for candidate_id in itertools.chain(*zip(*ids, strict=True)):  # by age in turn
        propose(here.sessions, candidate_id, f"NUMBER = {candidate_id!r}")
    with here.sessions.begin() as session:
        session.execute(text("DELETE FROM work WHERE kind = 'advance'"))
        session.execute(text("UPDATE work SET created_at = now() - interval '1 h'"))
    for _bell in range(8):
        tasks.serve("")
    assert served == [older.id] * 3 + [newer.id] * 3 + [older.id, newer.id]


def test_a_stale_doorbell_finds_nothing_to_do(here: Runtime) -> None:
    tasks.serve("work_1")


def test_what_a_handler_raises_is_written_down_and_the_work_comes_again_later(
    here: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Runtime, claim: Claim) -> None:
        raise RuntimeError(f"no luck with {claim.kind}")

    handlers: Mapping[WorkKind, object] = {WorkKind.ADVANCE: fail}
    monkeypatch.setattr(tasks, "HANDLERS", handlers)
    job = make_job(here.sessions)
    tasks.serve("")
    with here.sessions.begin() as session:
        row = session.execute(text("SELECT state, error, attempt, not_before > now() FROM work")).one()
    assert tuple(row) == ("queued", "RuntimeError: no luck with advance", 1, True)
    assert event_types(here.sessions, job.id) == ["job.created", "work.returned"]


@pytest.fixture
def json_lines() -> Iterator[None]:
    """Logs as a worker writes them, and then as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configure_logging("INFO", "json")
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def test_a_statement_that_runs_away_gives_the_work_back_and_shows_neither_sql_nor_values(
    here: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    canary = "-".join(["a", "canary"])  # so that no line of source has it

    def run_away(here: Runtime, claim: Claim) -> None:
        with here.transaction() as session:
            session.execute(text("SET LOCAL statement_timeout = '100ms'"))
            session.execute(text("SELECT pg_sleep(60), CAST(:value AS text)"), {"value": canary})

    monkeypatch.setattr(tasks, "HANDLERS", {WorkKind.ADVANCE: run_away})
    make_job(here.sessions)
    request.getfixturevalue("json_lines")
    tasks.serve("")
    with here.sessions.begin() as session:
        row = session.execute(text("SELECT state, error FROM work")).one()
        told = session.execute(text("SELECT data->>'error' FROM events WHERE type = 'work.returned'")).scalar_one()
    assert tuple(row) == ("queued", "OperationalError: canceling statement due to statement timeout")
    assert told == row.error
    logged = capsys.readouterr().err
    assert "pg_sleep" in logged and canary not in logged


def test_every_line_of_a_work_names_its_job_and_candidate_whoever_writes_it(
    here: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    job = make_job(here.sessions)
    tasks.serve("")

    def take_long(_: Runtime, claim: Claim) -> None:
        logging.getLogger("a.library").warning("it speaks")
        interrupted = threading.Event()
        with Lease(here.sessions, claim, interrupt=interrupted.set, renew_s=0.01, longest_s=0):
            assert interrupted.wait(10)
        raise RuntimeError("and fails")

    monkeypatch.setattr(tasks, "HANDLERS", {WorkKind.PROPOSE: take_long, WorkKind.EVALUATE: take_long})
    request.getfixturevalue("json_lines")
    tasks.serve("")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    events = [line["event"] for line in lines]
    assert events == ["work.claimed", "it speaks", "lease.given_up", "work.interrupted", "work.failed"]
    with here.sessions.begin() as session:
        (candidate,) = session.scalars(text("SELECT candidate_id FROM work WHERE error IS NOT NULL")).all()
    for line in lines:
        assert (line["job_id"], line["candidate_id"]) == (job.id, candidate), line["event"]
        assert line["work_id"].startswith("work_") and line["kind"] == "propose"


def test_a_fenced_handler_is_counted(here: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(_: Runtime, claim: Claim) -> None:
        raise Fenced

    monkeypatch.setattr(tasks, "HANDLERS", {WorkKind.ADVANCE: too_late})
    job = make_job(here.sessions)
    tasks.serve("")
    assert event_types(here.sessions, job.id) == ["job.created", "work.fenced"]


def test_work_of_a_cancelled_job_ends_as_cancelled(here: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(_: Runtime, claim: Claim) -> None:
        raise CancelRequested

    monkeypatch.setattr(tasks, "HANDLERS", {WorkKind.ADVANCE: cancelled})
    make_job(here.sessions)
    tasks.serve("")
    assert states(here.sessions, WorkKind.ADVANCE) == ["cancelled"]


def test_a_round_of_the_reaper_takes_back_wakes_and_rings(here: Runtime, broker: Redis) -> None:
    lost = make_job(here.sessions)
    (candidate_id,) = make_candidates(here.sessions, lost)
    propose(here.sessions, candidate_id)
    expire(here.sessions, claim_kind(here.sessions, WorkKind.EVALUATE))
    with here.sessions.begin() as session:
        idle = jobs.create_job(session, _like(lost)).job
        session.execute(text("UPDATE work SET state = 'done' WHERE job_id = :id"), {"id": idle.id})
    assert reaping.reap(here) == recovery.Reaped(requeued=1)
    assert waiting(broker, "cpu") == 1
    assert waiting(broker, "control") == 1  # the idle job's; the other's was rung a moment ago, by its enqueuer
    assert reaping.reap(here) == recovery.Reaped()
    assert (waiting(broker, "cpu"), waiting(broker, "control")) == (1, 1)


def _like(job: Job) -> jobs.NewJob:
    return new_job(problem_hash=job.problem_hash)


def test_after_redis_lost_everything_every_row_is_rung_again(here: Runtime, broker: Redis) -> None:
    make_candidates(here.sessions, make_job(here.sessions), 3)
    with here.sessions.begin() as session:
        session.execute(text("UPDATE work SET rung_at = now() - interval '1 minute'"))
    reaping.reap(here)
    assert (waiting(broker, "cpu"), waiting(broker, "control")) == (3, 1)
    with here.sessions.begin() as session:
        session.execute(text("UPDATE work SET rung_at = now() - interval '1 minute'"))
    reaping.reap(here)
    assert (waiting(broker, "cpu"), waiting(broker, "control")) == (3, 1)  # still waiting: no repeats
    broker.flushall()
    with here.sessions.begin() as session:
        session.execute(text("UPDATE work SET rung_at = now() - interval '1 minute'"))
    reaping.reap(here)
    assert (waiting(broker, "cpu"), waiting(broker, "control")) == (3, 1)


def test_while_one_reaper_works_another_has_nothing_to_do(here: Runtime) -> None:
    expire(here.sessions, _claimed(here))
    with here.sessions.begin() as session:
        assert recovery.be_the_reaper(session)
        assert reaping.reap(here) == recovery.Reaped()
    assert reaping.reap(here) == recovery.Reaped(requeued=1)


def _claimed(here: Runtime) -> Claim:
    make_candidates(here.sessions, make_job(here.sessions))
    return claim_kind(here.sessions, WorkKind.PROPOSE)


def test_the_reaper_goes_on_after_a_round_that_failed(here: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    expire(here.sessions, _claimed(here))
    done = threading.Event()
    reap, rounds = reaping.reap, itertools.count()

    def fail_first(of: Runtime) -> recovery.Reaped:
        if next(rounds) == 0:
            raise RuntimeError("a first round that fails")
        reaped = reap(of)
        done.set()
        return reaped

    monkeypatch.setattr(reaping, "reap", fail_first)
    reaper = reaping.Reaper(here, every_s=0.01)
    reaper.start()
    assert done.wait(30)
    reaper.stop()
    assert states(here.sessions, WorkKind.PROPOSE) == ["queued"]


def test_the_worker_knows_its_tasks(configured: object) -> None:
    assert {"kernelwright.advance", "kernelwright.propose", "kernelwright.evaluate"} <= set(app.tasks)
