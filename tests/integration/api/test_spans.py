"""The span of a request: what it is called, what it says, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.client import Client, Job
from db import jobs, tracing
from db.settings import Settings
from tests.integration.api.conftest import BODY
from tests.support.collector import Collector, Seen

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Takes what the server, which is in this process, sends from now on."""
    with Collector() as collector:
        tracing.start(Settings(otlp_endpoint=collector.endpoint), "kernelwright-api")
        yield collector
        tracing.stop()


def only(collector: Collector) -> Seen:
    """The one span that arrives."""
    collector.wait_for(lambda: bool(collector.spans()))
    tracing.stop()
    (span,) = collector.spans()
    return span


def test_a_submission_is_a_span_that_its_job_continues(
    http: httpx2.Client, sessions: sessionmaker[Session], collector: Collector
) -> None:
    answer = http.post("/v1/jobs", json=BODY, headers={"traceparent": PARENT, "X-Request-Id": "req_mine"})
    assert answer.status_code == 202
    job_id = answer.json()["id"]
    span = only(collector)
    assert (span.name, span.kind, span.service) == ("POST /v1/jobs", "server", "kernelwright-api")
    assert (span.trace_id, span.parent_id) == tuple(PARENT.split("-")[1:3])
    assert span.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/jobs",
        "http.response.status_code": 202,
        "kernelwright.request.id": "req_mine",
        "kernelwright.job.id": job_id,
    }
    with sessions.begin() as session:
        assert jobs.fetch_job(session, job_id).traceparent == f"00-{span.trace_id}-{span.span_id}-01"
    assert b"softmax" not in b"".join(collector.bodies)


def test_an_error_names_the_request_that_its_document_names(http: httpx2.Client, collector: Collector) -> None:
    answer = http.get("/v1/jobs/job_none")
    span = only(collector)
    assert (span.name, span.failed) == ("GET /v1/jobs/{job_id}", False)
    assert span.attributes["kernelwright.request.id"] == answer.json()["request_id"]
    assert span.attributes["http.response.status_code"] == 404
    assert span.attributes["kernelwright.job.id"] == "job_none"


@pytest.mark.parametrize(("method", "name", "said"), [("GET", "GET", "GET"), ("PROPFIND", "HTTP", "_OTHER")])
def test_what_anybody_can_invent_is_in_no_name(
    http: httpx2.Client, collector: Collector, method: str, name: str, said: str
) -> None:
    http.request(method, "/invented?by=anybody")
    span = only(collector)
    assert (span.name, span.attributes["http.request.method"]) == (name, said) and "http.route" not in span.attributes
    assert b"PROPFIND" not in b"".join(collector.bodies)
    assert b"invented" not in b"".join(collector.bodies) and b"anybody" not in b"".join(collector.bodies)


def test_probes_and_scrapes_are_not_traced(http: httpx2.Client, collector: Collector) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/v1/problems"):
        assert http.get(path).status_code == 200
    assert only(collector).name == "GET /v1/problems"


def test_a_stream_is_a_short_span_however_long_it_is_read(job: Job, http: httpx2.Client, collector: Collector) -> None:
    headers = {"Accept": "text/event-stream"}
    with http.stream("GET", f"/v1/jobs/{job['id']}/events", headers=headers) as stream:
        next(stream.iter_lines())
        span = only(collector)  # while it is still open
    assert (span.name, span.attributes["http.response.status_code"]) == ("GET /v1/jobs/{job_id}/events", 200)


def test_a_long_poll_lasts_as_long_as_it_was_held(job: Job, client: Client, collector: Collector) -> None:
    began = time.monotonic()
    client.job(job["id"], wait_s=1, since_version=job["version"])
    held_s = time.monotonic() - began
    assert 0.9 < only(collector).wall_s < held_s + 0.1
