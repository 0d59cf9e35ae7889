"""A finished job out of one database and into another: the same rows, and later searches learn from it there."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from db.dumps import HEADER, NotAJob, dump_job, load_job
from db.vocabulary import WorkKind
from tests.integration.worker.test_learning import certify, finish, kernel, lessons, searched
from tests.support.ledger import claim_kind, make_job
from worker.learning import learn
from worker.runtime import Runtime

TABLES = ("problems", "jobs", "candidates", "evaluations", "certificates", "kernels")


def dumped(here: Runtime, job_id: str) -> list[str]:
    with here.sessions.begin() as session:
        return list(dump_job(session, job_id))


def rows(here: Runtime) -> dict[str, Any]:
    """All that must be the same on both sides."""
    found: dict[str, Any] = {}
    with here.sessions.begin() as session:
        for table in TABLES:
            found[table] = session.scalars(text(f"SELECT row_to_json(t)::text FROM {table} AS t ORDER BY 1")).all()
        events = "SELECT type, at::text, data::text FROM events ORDER BY seq"
        found["events"] = [tuple(row) for row in session.execute(text(events))]
    return found


def emptied(here: Runtime) -> None:
    """Another deployment, with nothing in it."""
    with here.sessions.begin() as session:
        session.execute(text("TRUNCATE problems, jobs, lessons, knowledge_terms RESTART IDENTITY CASCADE"))


def test_a_job_is_the_same_elsewhere_and_is_learned_from_there(here: Runtime) -> None:
    job, _ = searched(here)
    certify(here, job)
    finish(here, job)
    learn(here, claim_kind(here.sessions, WorkKind.LEARN))
    before, taught = rows(here), [(each.statement, each.evidence) for each in lessons(here)]
    lines = dumped(here, job.id)
    emptied(here)
    make_job(here.sessions)  # so that events and ids of others are there already
    with here.sessions.begin() as session:
        session.execute(text("TRUNCATE problems, jobs CASCADE"))
        assert load_job(session, iter(lines))
    learn(here, claim_kind(here.sessions, WorkKind.LEARN))
    assert kernel(here, job).current
    assert [(each.statement, each.evidence) for each in lessons(here)] == taught
    assert rows(here) == before
    with here.sessions.begin() as session:
        assert not load_job(session, iter(lines))
    assert dumped(here, job.id) == lines


def test_what_belongs_to_one_deployment_stays_there(here: Runtime) -> None:
    job, _ = searched(here)
    finish(here, job)
    with here.sessions.begin() as session:
        session.execute(text("INSERT INTO api_keys (id, name, token_hash, prefix) VALUES ('key_1', 'a', 'x', 'kw')"))
        session.execute(text("UPDATE jobs SET key_id = 'key_1', traceparent = '00-trace'"))
        session.execute(text("UPDATE evaluations SET worker_id = 'worker_9'"))
    said = "\n".join(dumped(here, job.id))
    assert "key_1" not in said and "00-trace" not in said and "worker_9" not in said


def test_a_job_that_runs_and_one_that_is_not_there_are_not_dumped(here: Runtime) -> None:
    running = make_job(here.sessions)
    for job_id, why in ((running.id, "has not ended"), ("job_0", "there is no job_0")):
        with pytest.raises(LookupError, match=why):
            dumped(here, job_id)


def test_what_is_no_dump_or_was_cut_off_is_refused_and_leaves_nothing(here: Runtime) -> None:
    job, _ = searched(here)
    finish(here, job)
    lines = dumped(here, job.id)
    emptied(here)
    foreign = [f"{HEADER}\tjob_1", 'api_keys\t{"id": "key_1"}']
    for wrong, why in (([], "first line"), (["{}"], "first line"), (lines[:3], "cut off"), (foreign, "'api_keys'")):
        with pytest.raises(NotAJob, match=why), here.sessions.begin() as session:
            load_job(session, iter(wrong))
    assert not any(rows(here).values())
