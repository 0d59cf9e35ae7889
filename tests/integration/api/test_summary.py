"""The summary and the queues: what a dashboard is told, and that it is told nothing twice."""

from __future__ import annotations

import httpx2
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from cli.client import Client, Job
from db import ledger, workers
from db.workers import WorkerFacts
from tests.integration.api.conftest import BODY
from tests.integration.api.history import History


def test_an_idle_service_is_summed_up(http: httpx2.Client) -> None:
    answer = http.get("/v1/summary")
    assert answer.headers["cache-control"] == "max-age=2"
    found = answer.json()
    assert found["jobs"]["live"] == {"queued": 0, "running": 0, "cancelling": 0}
    assert found["jobs"]["ended_24h"] == {"succeeded": 0, "failed": 0, "cancelled": 0}
    assert (found["queues"], found["wait"], found["workers"]["data"]) == ([], None, [])
    assert (found["today"]["usd"], found["today"]["gpu_s"]) == ("0.00", 0)


def test_jobs_queues_spending_and_waits(
    client: Client, job: Job, history: History, sessions: sessionmaker[Session]
) -> None:
    history.start(job["id"])
    history.evaluate(job["id"], speedup=1.5, gpu_s=2.5)
    ended = client.submit({**BODY, "certify": False})["id"]
    history.start(ended)
    history.evaluate(ended, speedup=2.0, gpu_s=1.0)
    history.finish(ended)
    with sessions.begin() as session:
        session.execute(text("UPDATE evaluations SET created_at = now() - interval '2 days' WHERE gpu_s = 1"))
        session.execute(
            text(
                "INSERT INTO llm_calls (id, job_id, candidate_id, key, state, model, cost_usd, finished_at)"
                " SELECT 'call_' || key, job_id, id, key, paid.state, 'm', usd, at FROM candidates, (VALUES"
                " ('propose', 'finished', 0.25, now()), ('old', 'superseded', 8, now() - interval '2 days'))"
                " AS paid (key, state, usd, at) WHERE job_id = :job"
            ),
            {"job": job["id"]},
        )
    found = client.summary()
    assert found["jobs"]["live"]["running"] == 1
    assert found["jobs"]["ended_24h"]["succeeded"] == 1
    assert (found["today"]["usd"], found["today"]["gpu_s"]) == ("0.25", 2.5)
    assert found["wait"] is not None and found["wait"]["claims"] == 4
    queues = {queue["name"]: queue for queue in found["queues"]}
    # The jobs' admissions wait on `cpu`, their advances and the learning on `control`.
    assert queues["cpu"]["ready"] >= 1 and queues["cpu"]["wait"]["claims"] == 4
    assert queues["control"]["oldest_age_s"] > 0 and queues["control"]["wait"] is None
    assert [queue["name"] for queue in client.queues()] == list(queues)


def test_a_worker_is_shown_with_what_it_does(
    client: Client, job: Job, history: History, sessions: sessionmaker[Session]
) -> None:
    (candidate,) = history.propose(job["id"])
    with sessions.begin() as session:
        workers.register(session, WorkerFacts("worker_1", "node7", 42, ("cpu",), "cpu"))
        workers.register(session, WorkerFacts("worker_2", "node8", 43, ("control",)))
        work_id = session.scalar(text("SELECT id FROM work WHERE kind = 'propose'"))
        assert ledger.claim(session, work_id, "worker_1") is not None
        workers.set_current(session, "worker_1", work_id)
    found = client.summary()
    assert found["workers"]["states"] == {"active": 2, "draining": 0}
    busy, idle = found["workers"]["data"]
    assert busy["current"] == {
        "work_id": work_id,
        "kind": "propose",
        "job_id": job["id"],
        "candidate_id": candidate,
    }
    assert idle["current"] is None
    assert {queue["name"]: queue["workers"] for queue in found["queues"]} == {"control": 1, "cpu": 1}


def test_the_tag_stays_until_something_happens(http: httpx2.Client, job: Job, history: History) -> None:
    tag = http.get("/v1/summary").headers["etag"]
    again = http.get("/v1/summary", headers={"If-None-Match": tag})
    assert (again.status_code, again.headers["etag"], again.content) == (304, tag, b"")
    history.start(job["id"])
    changed = http.get("/v1/summary", headers={"If-None-Match": tag})
    assert (changed.status_code, changed.headers["etag"] != tag) == (200, True)


def test_nothing_else_can_be_asked_of_it(http: httpx2.Client) -> None:
    answer = http.get("/v1/summary?since=1h")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "?since")
