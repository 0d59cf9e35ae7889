"""What is not about one resource: health, ids, unknown addresses, a database or a Redis that is away, the real ring."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr
from redis import Redis
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from cli.client import ApiError, Client, Job
from cli.embedded.valkey import EmbeddedValkey
from db import workers
from db.settings import Settings, get_settings
from db.workers import WorkerFacts
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.server import serving
from worker.client import KEY_PREFIX, producer

NOWHERE = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"


def test_ready_when_database_schema_and_redis_are_there(http: httpx2.Client, client: Client) -> None:
    assert http.get("/healthz").json()["status"] == "ok"
    assert http.get("/readyz").json()["ready"] is True
    assert client.ready()


@pytest.fixture
def old_schema(sessions: sessionmaker[Session]) -> Iterator[None]:
    change = text("UPDATE alembic_version SET version_num = :version")
    with sessions.begin() as session:
        newest = session.scalar(text("SELECT version_num FROM alembic_version"))
        session.execute(change, {"version": "0000"})
    yield
    with sessions.begin() as session:
        session.execute(change, {"version": newest})


@pytest.mark.usefixtures("old_schema")
def test_not_ready_says_that_the_schema_is_old(http: httpx2.Client) -> None:
    answer = http.get("/readyz")
    assert answer.status_code == 503
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "migration"
    assert "the schema is at 0000" in error["detail"]


def test_not_ready_names_all_that_is_missing_and_alive_all_the_same(tmp_path: Path, bells: Bells) -> None:
    settings = Settings(database_url=SecretStr(NOWHERE), redis_url=SecretStr(f"unix://{tmp_path}/none"))
    with serving(create_app(settings, ring=bells)) as url, Client(url) as client:
        answer = httpx2.get(f"{url}/readyz")
        assert answer.status_code == 503
        assert [each["pointer"] for each in answer.json()["errors"]] == ["database", "redis"]
        assert "nobody" not in answer.text
        assert not client.ready()
        assert httpx2.get(f"{url}/healthz").status_code == 200


def test_a_database_that_is_away_is_a_503_without_its_words(bells: Bells) -> None:
    settings = Settings(database_url=SecretStr(NOWHERE))
    with serving(create_app(settings, ring=bells)) as url:
        answer = httpx2.post(f"{url}/v1/jobs", json=BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["type"] == "urn:kernelwright:error:unavailable"
    assert "nobody" not in answer.text
    assert bells.rung == []


@pytest.fixture
def redis_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Tells this process where Redis is, as the environment of a server does."""

    def forget() -> None:
        get_settings.cache_clear()
        producer.cache_clear()

    def tell(url: str) -> None:
        monkeypatch.setenv("KERNELWRIGHT_REDIS_URL", url)
        forget()

    yield tell
    forget()


def test_the_real_ring_leaves_a_message_on_the_control_queue(
    settings: Settings, valkey: EmbeddedValkey, redis_at: Callable[[str], None]
) -> None:
    redis_at(valkey.url)
    queue = f"{KEY_PREFIX}control"
    with Redis.from_url(settings.redis_client_url) as redis:
        redis.delete(queue)
        with serving(create_app(settings)) as url, Client(url) as client:
            job = client.submit(BODY)
            deadline = time.monotonic() + 30
            while redis.llen(queue) == 0 and time.monotonic() < deadline:
                time.sleep(0.01)
        messages = [json.loads(each) for each in redis.lrange(queue, 0, -1)]
        redis.delete(queue)
    assert [each["headers"]["task"] for each in messages] == ["kernelwright.advance"]
    assert job["state"] == "queued"


def test_a_redis_that_is_away_does_not_lose_the_job(
    settings: Settings, tmp_path: Path, redis_at: Callable[[str], None]
) -> None:
    redis_at(f"unix://{tmp_path}/none")
    with serving(create_app(settings)) as url, Client(url) as client:
        job = client.submit(BODY)
        assert client.job(job["id"])["state"] == "queued"


def test_every_answer_has_a_request_id_and_keeps_the_clients(http: httpx2.Client, job: Job) -> None:
    for path in ("/v1/jobs", f"/v1/jobs/{job['id']}", "/nothing", "/v1/jobs?x=1"):
        assert http.get(path).headers["x-request-id"].startswith("req_")
    answer = http.get("/nothing", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "mine-1"


def test_an_unknown_address_is_a_problem_document(http: httpx2.Client) -> None:
    answer = http.get("/v1/nothing")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert "/docs" in answer.json()["detail"]


def test_a_wrong_method_is_told_all_the_right_ones(http: httpx2.Client) -> None:
    answer = http.delete("/v1/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert answer.headers["content-type"] == "application/problem+json"


def test_problems(client: Client) -> None:
    listed = client.problems()
    assert "softmax" in [each["name"] for each in listed]
    assert all(each["summary"] and each["workloads"] and "source" not in each for each in listed)
    shown = client.problem("softmax")
    assert "class Model" in shown["source"]
    assert shown["hash"] == next(each["hash"] for each in listed if each["name"] == "softmax")
    with pytest.raises(ApiError, match='called "sofmax"; there are .*softmax') as error:
        client.problem("sofmax")
    assert error.value.status == 404


def test_workers(client: Client, sessions: sessionmaker[Session]) -> None:
    facts = WorkerFacts("worker_1", "node7", 42, ("gpu.nvidia-h100", "llm"), "nvidia-h100", {"arch": "sm_90"})
    with sessions.begin() as session:
        workers.register(session, facts)
        workers.register(session, WorkerFacts("worker_2", "node8", 43, ("control",)))
        session.execute(text("UPDATE workers SET heartbeat_at = now() - interval '1 hour' WHERE id = 'worker_2'"))
    (worker,) = client.workers()
    assert (worker["id"], worker["hardware"], worker["queues"]) == ("worker_1", "nvidia-h100", list(facts.queues))
    assert (worker["device"], worker["state"], worker["current_work"]) == ({"arch": "sm_90"}, "active", None)
    assert worker["heartbeat_at"].endswith("Z")
    dry = client.dry_run({"problem": "softmax", "target": {"hardware": "nvidia-h100", "language": "cuda"}})
    assert dry["warnings"] == []


def test_all_workers_that_ever_were(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        workers.register(session, WorkerFacts("worker_2", "node8", 43, ("control",)))
        session.execute(text("UPDATE workers SET heartbeat_at = now() - interval '1 hour'"))
    assert http.get("/v1/workers").json()["data"] == []
    assert len(http.get("/v1/workers?include_gone=true").json()["data"]) == 1


def test_the_document_is_served(http: httpx2.Client) -> None:
    assert http.get("/openapi.json").json()["info"]["title"] == "Kernelwright"
    assert http.get("/docs").status_code == 200
