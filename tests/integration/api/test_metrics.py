"""/metrics of a real API before a real database: what was served, the gauges from SQL, and what deploy/ asks of it."""

from __future__ import annotations

import time

import httpx2
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from api import gauges
from api.app import create_app
from cli.client import Client
from db import gauges as sql
from db import summary
from db.settings import Settings
from db.workers import WorkerFacts, register
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.server import serving
from tests.support.promql import unmet, uses
from worker.metrics import REGISTRY


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test's snapshot must not be read: every scrape asks the database."""
    monkeypatch.setattr(gauges._Cached, "_due_at", property(lambda _: 0.0, lambda *_: None), raising=False)


def values(http: httpx2.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = http.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"kernelwright_{name}", frozenset(labels.items())


_HISTORY = (
    "INSERT INTO api_keys (id, name, token_hash, budget_usd, budget_calls) VALUES ('key_1', 'team', 'x', 10, 4)",
    "UPDATE jobs SET key_id = 'key_1', cost_usd = 2.5, llm_calls = 5",
    "INSERT INTO candidates (id, job_id, ordinal, operator, proposer) SELECT 'cand_1', id, 1, 'seed', 'llm' FROM jobs",
    "INSERT INTO evaluations (id, candidate_id, job_id, verdict, gpu_s) SELECT 'e', 'cand_1', id, 'ok', 7 FROM jobs",
    "INSERT INTO llm_calls (id, job_id, candidate_id, key, model, state, cost_usd, finished_at)"
    " SELECT 'call_' || days, id, 'cand_1', 'k' || days, 'm', 'superseded', 0.25, now() - make_interval(days => days)"
    " FROM jobs, generate_series(0, 1) AS days",
    "INSERT INTO work (id, kind, queue, job_id, candidate_id, state, lease_token, lease_expires_at)"
    " SELECT 'work_1', 'evaluate', 'cpu', id, 'cand_1', 'running', gen_random_uuid(), now() - interval '9 s' FROM jobs",
    "UPDATE work SET created_at = now() - interval '1 hour', not_before = now() - interval '90 s'"
    " WHERE state = 'queued'",
    "UPDATE workers SET heartbeat_at = now() - interval '40 s'",
    "INSERT INTO webhooks (id, url, types, secret) VALUES ('webhook_1', '', '{}', '')",
    "INSERT INTO webhook_deliveries (id, webhook_id, type, data, not_before)"
    " SELECT 'delivery_' || late, 'webhook_1', '', '{}', now() - make_interval(secs => late)"
    " FROM unnest(ARRAY[70, -70]) AS late",
)


@pytest.fixture
def lived(client: Client, sessions: sessionmaker[Session]) -> None:
    client.submit({**BODY, "admit": False})
    with sessions.begin() as session:
        register(session, WorkerFacts("worker_1", "node-1", 7, ("control",)))
        for statement in _HISTORY:
            session.execute(text(statement))


@pytest.mark.usefixtures("lived")
def test_the_gauges_are_what_the_database_holds(http: httpx2.Client) -> None:
    found = values(http)
    assert found[key("database_reached")] == 1
    assert found[key("queue_ready_work", queue="control")] == 1
    assert 89 < found[key("queue_oldest_age_seconds", queue="control")] < 120
    assert found[key("queue_workers", queue="control")] == 1
    assert found[key("queue_workers", queue="cpu")] == 0
    assert (found[key("leases", queue="cpu", state="live")], found[key("leases", queue="cpu", state="expired")]) == (
        0,
        1,
    )
    assert (found[key("jobs", state="queued")], found[key("jobs", state="running")]) == (1, 0)
    assert (found[key("workers", state="active")], found[key("workers", state="gone")]) == (1, 0)
    assert 39 < found[key("worker_heartbeat_age_seconds", worker="worker_1", hostname="node-1", queues="control")] < 70
    assert (found[key("spend_today_usd")], found[key("gpu_today_seconds")]) == (0.25, 7)
    assert found[key("key_budget_used_ratio", key="team", cap="usd")] == 0.25
    assert found[key("key_budget_used_ratio", key="team", cap="calls")] == 1.25
    assert (found[key("webhooks", state="enabled")], found[key("webhooks", state="disabled")]) == (1, 0)
    assert found[key("webhook_waiting")] == 2
    assert 69 < found[key("webhook_oldest_age_seconds")] < 100


@pytest.mark.usefixtures("lived")
def test_dashboards_and_alerts_ask_the_api_for_what_it_exports(http: httpx2.Client) -> None:
    http.get("/v1/jobs")
    counted_by_workers = {sample.name for family in REGISTRY.collect() for sample in family.samples} | {
        f"{family.name}{suffix}" for family in REGISTRY.collect() for suffix in ("_total", "_bucket", "_sum", "_count")
    }
    of_api = [use for use in uses() if use.metric not in counted_by_workers]
    assert len(of_api) > 20
    assert unmet(of_api, http.get("/metrics").text) == []


def test_requests_are_counted_by_the_template_of_their_route(http: httpx2.Client) -> None:
    before = values(http)

    def more(name: str, **labels: str) -> float:
        return after.get(key(name, **labels), 0) - before.get(key(name, **labels), 0)

    for number in range(3):
        http.get(f"/v1/jobs/job_{number}")
        http.get(f"/nowhere/{number}")
    http.get("/v1/jobs/job_1?wait=1")
    after = values(http)
    job = {"method": "GET", "route": "/v1/jobs/{job_id}"}
    assert more("http_requests_total", status="404", **job) == 4
    assert more("http_request_duration_seconds_count", **job) == 3  # whoever waits says nothing of our speed
    assert more("http_requests_total", method="GET", route="unmatched", status="404") == 3
    assert not [name for name, labels in after if any("nowhere" in value for _, value in labels)]


def test_what_was_served_names_the_job_in_its_log_line(http: httpx2.Client) -> None:
    with structlog.testing.capture_logs() as lines:
        http.get("/v1/jobs/job_7/best")
        until = time.monotonic() + 5
        while not lines and time.monotonic() < until:  # it is written when the answer is gone
            time.sleep(0.005)
    assert [line["job_id"] for line in lines if line["event"] == "request.served"] == ["job_7"]


def test_a_database_that_is_away_is_said_and_the_rest_is_there(bells: Bells) -> None:
    settings = Settings(database_url=SecretStr("postgresql+psycopg://nobody@127.0.0.1:1/nothing"))
    with serving(create_app(settings, ring=bells)) as url, httpx2.Client(base_url=url) as http:
        found = values(http)
        assert found[key("database_reached")] == 0
        assert key("jobs", state="queued") not in found
        assert values(http)[key("http_requests_total", method="GET", route="/metrics", status="200")] == 1
        assert http.get("/metrics", headers={"X-Forwarded-For": "10.0.0.7"}).status_code == 401


PLANNED = {"queues": sql.SQL["queues"], "leases": sql.SQL["leases"], "jobs": summary.SQL["jobs_live"]}


@pytest.mark.parametrize("name", PLANNED)
def test_live_rows_are_read_through_an_index_among_many_that_are_not(
    name: str, sessions: sessionmaker[Session]
) -> None:
    with sessions() as session:
        session.execute(text("INSERT INTO problems (hash, name, source) VALUES ('p', 'p', '')"))
        session.execute(
            text(
                "INSERT INTO jobs (id, problem_hash, problem_name, hardware, language, budget_candidates, state,"
                " finished_at) SELECT 'job_' || n, 'p', 'p', 'cpu', 'cpp', 1, 'succeeded', now()"
                " FROM generate_series(1, 5000) n"
            )
        )
        session.execute(
            text(
                "INSERT INTO work (id, kind, queue, job_id, state)"
                " SELECT id, 'advance', 'control', id, 'done' FROM jobs"
            )
        )
        session.execute(text("ANALYZE jobs, work"))
        plan = "\n".join(session.scalars(text(f"EXPLAIN {PLANNED[name].text}")))
        session.rollback()
    assert "Seq Scan" not in plan and "Index" in plan, plan
