"""What a worker's spans say, with real proposers and the real judge; and that the last of a pool's process arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from db import candidates, otlp, tracing
from db.ledger import Claim
from db.models import Evaluation, Job
from db.session import make_engine, make_sessions
from db.settings import Settings
from db.vocabulary import WorkKind
from tests.support.collector import Collector
from tests.support.fake_openai import Answer, FakeOpenAI
from tests.support.ledger import claim_kind, expire, make_candidates, make_job, propose
from worker import client, reaping, runtime, tasks
from worker.runtime import Runtime
from worker.spans import working

# litellm leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).resolve().parents[3]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MODEL = "openai/scripted"
KEY = "sk-of-the-provider"
WRONG = """
import os

import torch

print("it sees", dict(os.environ), flush=True)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 0)
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def traced(here: Runtime, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A worker that traces; `tracing.stop()` sends all of it."""
    monkeypatch.setattr(runtime, "_current", here)
    monkeypatch.setattr(otlp, "STOP_S", 60.0)  # a process that ends waits for 2 s
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=the-collectors-key")
    monkeypatch.setenv("KERNELWRIGHT_OTLP_ENDPOINT", collector.endpoint)
    tracing.start(Settings(otlp_endpoint=collector.endpoint), "kernelwright-worker")
    yield here
    tracing.stop()


def submitted(here: Runtime) -> Job:
    """A job whose request was traced."""
    job = make_job(here.sessions)
    with here.sessions.begin() as session:
        session.execute(text("UPDATE jobs SET traceparent = :traceparent"), {"traceparent": PARENT})
    return job


def do(here: Runtime, claim: Claim) -> None:
    with working(here, claim):
        tasks.work(here, claim)


def evaluation(here: Runtime, candidate_id: str) -> Evaluation:
    with here.sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None and row.evaluation is not None
    return row.evaluation


def test_a_judgement_is_a_span_with_its_phases_below_and_its_candidate_sees_nothing_of_it(
    traced: Runtime, collector: Collector
) -> None:
    job = submitted(traced)
    (candidate_id,) = make_candidates(traced.sessions, job)
    propose(traced.sessions, candidate_id, WRONG)
    claim = claim_kind(traced.sessions, WorkKind.EVALUATE)
    do(traced, claim)
    tracing.stop()
    (work,) = collector.spans(name="evaluate")
    assert (work.trace_id, work.parent_id, work.kind) == (*PARENT.split("-")[1:3], "consumer")
    assert work.attributes.pop("kernelwright.work.queued_s") >= 0
    assert work.attributes == {
        "kernelwright.job.id": job.id,
        "kernelwright.candidate.id": candidate_id,
        "kernelwright.work.id": claim.id,
        "kernelwright.work.kind": "evaluate",
        "kernelwright.work.queue": "cpu",
        "kernelwright.work.attempt": 1,
        "kernelwright.work.returned": 0,
        "kernelwright.work.outcome": "done",
        "kernelwright.worker.id": traced.owner,
        "kernelwright.verdict": "incorrect",
    }
    below = {span.name: span for span in collector.spans(parent_id=work.span_id)}
    assert set(below) == {"build", "runner", "load", "verify"}
    assert all(span.trace_id == work.trace_id and span.within(work) for span in below.values())
    assert below["load"].within(below["runner"]) and below["verify"].within(below["runner"])
    assert below["load"].ended_ns <= below["verify"].began_ns + 10_000_000
    found = evaluation(traced, candidate_id).report
    assert found["verdict"] == "incorrect", found["reason"]
    assert "phases" not in found
    assert "it sees" in found["log"] and "PATH" in found["log"]
    port = collector.endpoint.rpartition(":")[2]
    for ours in ("OTEL", "OTLP", "TRACEPARENT", "traceparent", "the-collectors-key", f":{port}", PARENT):
        assert ours not in found["log"]
    assert collector.headers[0]["x-collector-key"] == "the-collectors-key"
    for theirs in (b"it sees", b"environ", b"softmax(x", b"the-collectors-key"):
        assert theirs not in b"".join(collector.bodies)


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> Iterator[None]:
    with FakeOpenAI(answers) as server:
        options = {"api_base": server.base_url, "api_key": KEY, "usd_per_mtok_in": "100", "usd_per_mtok_out": "200"}
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", json.dumps({"*": options}))
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield


def asked(here: Runtime) -> None:
    job = submitted(here)
    make_candidates(here.sessions, job, proposer="llm", model=MODEL, queue="llm")
    do(here, claim_kind(here.sessions, WorkKind.PROPOSE))
    tracing.stop()


def test_a_call_to_a_model_is_a_span_by_the_conventions(
    traced: Runtime, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(monkeypatch, Answer(source=WRONG)):
        asked(traced)
    (work,), (call,) = collector.spans(name="propose"), collector.spans(name=f"chat {MODEL}")
    proposal = ("operator", "proposer", "model", "proposal")
    assert [work.attributes[f"kernelwright.{name}"] for name in proposal] == ["seed", "llm", MODEL, "queued"]
    assert (call.parent_id, call.trace_id, call.kind, call.failed) == (work.span_id, work.trace_id, "client", False)
    assert call.attributes.pop("kernelwright.llm.prompt_version")
    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 500,
        "kernelwright.cost_usd": 0.2,
        "kernelwright.llm.attempts": 1,
    }
    for text_of_others in (b"softmax(x", b"class Model", KEY.encode(), b"You "):
        assert text_of_others not in b"".join(collector.bodies)


def test_a_provider_that_refuses_is_not_quoted(
    traced: Runtime, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(monkeypatch, Answer(status=400, error="you sent: class Model")):
        asked(traced)
    (call,) = collector.spans(name=f"chat {MODEL}")
    assert call.failed and call.attributes["error.type"] == "provider"
    assert b"you sent" not in b"".join(collector.bodies)


def test_work_that_comes_again_is_linked_to_the_run_before(
    traced: Runtime, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(here: Runtime, claim: Claim) -> None:
        raise RuntimeError("what the source says")

    def vanish(here: Runtime, claim: Claim) -> None:
        expire(here.sessions, claim)
        reaping.reap(here)

    handlers: list[Callable[[Runtime, Claim], None]] = [fail, vanish, tasks.HANDLERS[WorkKind.ADVANCE]]
    submitted(traced)
    for handler in handlers:
        monkeypatch.setattr(tasks, "HANDLERS", {WorkKind.ADVANCE: handler})
        with traced.sessions.begin() as session:
            session.execute(text("UPDATE work SET not_before = now()"))
        do(traced, claim_kind(traced.sessions, WorkKind.ADVANCE))
    tracing.stop()
    runs = collector.spans(name="advance")
    assert [run.attributes["kernelwright.work.attempt"] for run in runs] == [1, 2, 3]
    assert [run.links for run in runs] == [(), (runs[0].span_id,), (runs[1].span_id,)]
    assert [run.attributes["kernelwright.work.outcome"] for run in runs] == ["failed", "done", "done"]
    assert (runs[0].failed, runs[0].attributes["error.type"]) == (True, "RuntimeError")
    assert runs[2].attributes["kernelwright.added"] > 0
    assert b"what the source says" not in b"".join(collector.bodies)


# --- real pools -------------------------------------------------------------------------------------------------------


def test_nothing_is_lost_where_each_task_has_a_process_of_its_own(configured: Settings, collector: Collector) -> None:
    told = {
        "KERNELWRIGHT_OTLP_ENDPOINT": collector.endpoint,
        # What arrives sooner was sent because its process ended.
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
        "PYTHONPATH": str(ROOT),
    }
    pool = ("--pool", "prefork", "--concurrency", "1", "--max-tasks-per-child", "1", "--queues", "control")
    command = [sys.executable, "-m", "celery", "--quiet", "-A", "worker.app", "worker", *pool, "--without-mingle"]
    engine = make_engine(configured.sqlalchemy_url, "tests")
    made = [make_job(make_sessions(engine)) for _ in range(3)]
    engine.dispose()
    for job in made:
        client.ring(job.id, "control", "advance")
    with subprocess.Popen(command, env=os.environ | told, cwd=configured.home) as worker:
        try:
            collector.wait_for(lambda: len(collector.spans(name="advance")) == len(made), patience_s=60)
        finally:
            worker.terminate()
    found = collector.spans(name="advance")
    assert {span.attributes["kernelwright.job.id"] for span in found} == {job.id for job in made}
    assert len({span.trace_id for span in found}) == len(made)
    assert {span.service for span in found} == {"kernelwright-worker"}
