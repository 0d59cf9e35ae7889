"""Traces from this process to a real collector: what arrives, and what a collector that is away costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.preflight import listen
from db import jobs, otlp, tracing
from db.origins import origin_of
from db.settings import Settings
from db.tracing import Run
from db.vocabulary import Verdict, WorkKind
from tests.support.collector import Collector
from tests.support.ledger import claim_kind, fresh, make_job

ROOT = Path(__file__).resolve().parents[3]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def traced(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """This process traces, and has sent all when the test asks for it by `tracing.stop()`."""
    monkeypatch.setattr(otlp, "STOP_S", 60.0)  # a process that ends waits for 2 s
    tracing.start(Settings(otlp_endpoint=collector.endpoint), "tests")
    yield collector
    tracing.stop()


def test_a_span_has_its_place_its_time_and_plain_attributes(traced: Collector) -> None:
    with tracing.span("outer", {"a": "b", "none": None}, kind="server", headers={"traceparent": PARENT}):
        with tracing.span("inner") as inner:
            inner.note({"verdict": Verdict.OK, "usd": Decimal("0.25"), "words": ["stop"], "count": 3, "yes": True})
        tracing.past("before", 1_700_000_000.5, 2.25)
    tracing.stop()
    before, outer, inner = traced.spans()
    assert {span.trace_id for span in (outer, inner, before)} == {PARENT.split("-")[1]}
    assert (outer.parent_id, outer.kind, outer.service) == (PARENT.split("-")[2], "server", "tests")
    assert inner.parent_id == before.parent_id == outer.span_id and inner.within(outer)
    assert outer.attributes == {"a": "b"}
    assert inner.attributes == {"verdict": "ok", "usd": 0.25, "words": ["stop"], "count": 3, "yes": True}
    assert (before.began_ns, before.wall_s) == (1_700_000_000_500_000_000, 2.25)


def test_an_exception_is_named_and_never_quoted(traced: Collector) -> None:
    with pytest.raises(ValueError, match="secret source"), tracing.span("work"):
        raise ValueError("secret source")
    tracing.stop()
    (span,) = traced.spans()
    assert (span.failed, span.attributes, span.events) == (True, {"error.type": "ValueError"}, 0)
    assert b"secret source" not in b"".join(traced.bodies)


def test_the_runs_of_a_unit_of_work_are_linked(traced: Collector) -> None:
    for number in (1, 2):
        with tracing.span("evaluate", run=Run("job_1", "work_1", number, PARENT)):
            pass
    with tracing.span("evaluate", run=Run("job_1", "work_2", 1, PARENT)):
        pass
    tracing.stop()
    first, second, other = traced.spans()
    assert first.trace_id == second.trace_id == PARENT.split("-")[1] and first.parent_id == PARENT.split("-")[2]
    assert (first.links, second.links, other.links) == ((), (first.span_id,), ())


def test_a_job_that_nobody_traced_has_one_trace_all_the_same(traced: Collector) -> None:
    with tracing.span("advance", run=Run("job_1", "work_1", 1)):
        pass
    with tracing.span("advance", run=Run("job_1", "work_2", 1)), tracing.span("below"):
        pass
    with tracing.span("advance", run=Run("job_2", "work_3", 1)):
        pass
    tracing.stop()
    first, second, below, other = traced.spans()
    assert first.trace_id == second.trace_id == below.trace_id != other.trace_id
    assert first.parent_id == second.parent_id == "" and below.parent_id == second.span_id


def test_what_was_not_sampled_stays_so(traced: Collector) -> None:
    unsampled = PARENT[:-1] + "0"
    with tracing.span("request", headers={"traceparent": unsampled}):
        handed_on = tracing.traceparent()
    assert handed_on is not None and handed_on.endswith("-00")
    with tracing.span("evaluate", run=Run("job_1", "work_1", 1, handed_on)):
        pass
    tracing.stop()
    assert traced.spans() == []


def test_a_job_keeps_the_trace_of_its_request(traced: Collector, sessions: sessionmaker[Session]) -> None:
    with tracing.span("POST /v1/jobs", headers={}) as _:
        job = make_job(sessions)
        expected = tracing.traceparent()
    again = make_job(sessions)
    assert (fresh(sessions, job).traceparent, fresh(sessions, again).traceparent) == (expected, None)
    with sessions.begin() as session:
        stored = jobs.same_again(session, fresh(sessions, job), None)
        assert jobs.create_job(session, stored).job.traceparent is None
    tracing.stop()
    (span,) = traced.spans()
    assert span.attributes == {"kernelwright.job.id": job.id}


def test_where_a_unit_of_work_comes_from(sessions: sessionmaker[Session]) -> None:
    make_job(sessions)
    claim = claim_kind(sessions, WorkKind.ADVANCE)
    with sessions.begin() as session:
        origin = origin_of(session, claim.id)
    assert (origin.traceparent, origin.returned) == (None, 0)
    assert origin.queued_s is not None and 0 <= origin.queued_s < 5


def test_the_headers_of_the_standard_variable_are_sent(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=kernels")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "named-by-hand")
    tracing.start(Settings(otlp_endpoint=f"{collector.endpoint}/"), "tests")
    with tracing.span("one"):
        pass
    tracing.stop()
    assert collector.headers[0]["x-tenant"] == "kernels"
    assert [span.service for span in collector.spans()] == ["named-by-hand"]


BUSY = """
import sys, time

from db import tracing
from db.logging import configure_logging
from db.settings import Settings

configure_logging("INFO", "json")
tracing.start(Settings(), "busy")
with tracing.span("first"):
    pass
time.sleep(3)  # the first batch has been tried, and tried again
began = time.monotonic()
for number in range(5_000):
    with tracing.span("work", {"number": number}):
        pass
busy_s = time.monotonic() - began
began = time.monotonic()
tracing.stop()
print(busy_s, time.monotonic() - began)
"""


def test_a_dead_collector_is_one_warning_and_costs_no_time() -> None:
    with listen("127.0.0.1", 0) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    env = {**os.environ, "KERNELWRIGHT_OTLP_ENDPOINT": endpoint, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", BUSY], env=env, capture_output=True, text=True, timeout=60, check=True)
    busy_s, stop_s = map(float, done.stdout.split())
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["event"], line["level"], line["endpoint"]) == ("traces.not_sent", "warning", endpoint)
    assert "refused" in line["why"].lower() or "connection" in line["why"].lower()
    assert busy_s < 5 and stop_s < 5


def test_log_lines_name_the_span(traced: Collector) -> None:
    assert tracing.add_ids(None, "info", {"event": "outside"}) == {"event": "outside"}
    with tracing.span("work"):
        line = dict(tracing.add_ids(None, "info", {"event": "inside"}))
    tracing.stop()
    (span,) = traced.spans()
    assert line == {"event": "inside", "trace_id": span.trace_id, "span_id": span.span_id}
    assert tracing.add_ids(None, "info", {"event": "after"}) == {"event": "after"}
