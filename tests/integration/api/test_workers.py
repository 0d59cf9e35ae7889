"""Draining a worker and having it back, over REST, with what that does to its claims."""

from __future__ import annotations

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.client import ApiError, Client, Job
from db import ledger, workers
from db.vocabulary import WorkerState
from db.workers import WorkerFacts

WORKER = "worker_1"


@pytest.fixture
def worker(url: str, sessions: sessionmaker[Session]) -> str:
    with sessions.begin() as session:
        workers.register(session, WorkerFacts(WORKER, "node7", 42, ("control", "cpu"), "cpu"))
    return WORKER


def test_a_draining_worker_claims_nothing_until_it_is_resumed(
    client: Client, job: Job, worker: str, sessions: sessionmaker[Session]
) -> None:
    def claim() -> ledger.Claim | None:
        with sessions.begin() as session:
            assert workers.beat(session, worker) is not None
            return ledger.claim_next(session, ["control", "cpu"], worker)

    held = claim()
    assert held is not None and held.job_id == job["id"]
    assert client.set_worker(worker, "draining")["state"] == "draining"
    assert client.set_worker(worker, "draining")["state"] == "draining"
    assert claim() is None
    with sessions.begin() as session:
        # What it holds, it may finish.
        assert ledger.renew(session, held).held
    assert client.summary()["workers"]["states"] == {"active": 0, "draining": 1}
    assert client.set_worker(worker, "active")["state"] == "active"
    assert claim() is not None


def test_one_that_is_gone_and_one_that_never_was(client: Client, worker: str, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        workers.set_state(session, worker, WorkerState.GONE)
    with pytest.raises(ApiError, match="nothing to drain") as gone:
        client.set_worker(worker, "draining")
    with pytest.raises(ApiError, match="GET /v1/workers") as unknown:
        client.set_worker("worker_0", "draining")
    assert (gone.value.status, unknown.value.status) == (409, 404)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"state": "gone"}, "#/state"), ({}, "#/state"), ({"state": "active", "queues": []}, "#/queues")],
)
def test_a_bad_body_is_named(http: httpx2.Client, worker: str, body: dict[str, object], pointer: str) -> None:
    answer = http.patch(f"/v1/workers/{worker}", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
