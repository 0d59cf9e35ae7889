"""Vectors by a model through a real HTTP server: paid once, nothing lost when it fails, and used in retrieval."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import select, text
from structlog.testing import capture_logs

from db import meanings
from db.knowledge_models import Meaning
from db.settings import Settings
from db.vocabulary import WorkKind
from search.knowledge.embedding import pack
from tests.integration.worker.conftest import OWNER
from tests.integration.worker.test_learning import asked, known, uses, with_retrieval
from tests.support.fake_openai import Answer, FakeOpenAI
from tests.support.ledger import claim_kind, make_job
from worker import client, embedding, reaping, runtime, tasks
from worker.embedding import embed
from worker.proposing import propose
from worker.runtime import Runtime

# litellm leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODEL = "openai/scripted-embedder"
KEY = "sk-of-a-test-and-secret"
PRICE = {"usd_per_mtok_in": "100"}
A_CALL_USD = Decimal("0.1")
"""1,000 tokens, which the server counts for any call, at that price."""

GOOD = Answer(repeat=True)


@pytest.fixture
def here(configured: Settings) -> Iterator[Runtime]:
    """A worker with an embedding model."""
    worker = Runtime(configured.model_copy(update={"embedding_model": MODEL}), OWNER, ("llm",))
    yield worker
    worker.close()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeOpenAI]:
    """A server with the parameter's answers and, as a second part of it, further options of the model."""
    answers, options = request.param if isinstance(request.param, tuple) else (request.param, PRICE)
    with FakeOpenAI(answers) as server:
        models = {"*": {"api_base": server.base_url, "api_key": KEY, **options}}
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", json.dumps(models))
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield server


def problems(here: Runtime, count: int, text_: str = "") -> set[str]:
    """Jobs that wait, each with a problem of its own; the ids under which these are embedded."""
    for number in range(count):
        make_job(here.sessions, problem_hash=f"p{number}", problem_source=f"# number {number}, {text_}\n")
    return {f"problem:p{number}" for number in range(count)}


def rows(here: Runtime) -> list[Meaning]:
    with here.sessions() as session:
        return list(session.scalars(select(Meaning).order_by(Meaning.item_id)))


def embedded(here: Runtime) -> set[str]:
    return {row.item_id for row in rows(here) if row.vector is not None}


def paid_usd(here: Runtime) -> Decimal:
    return sum((row.usd or Decimal(0) for row in rows(here)), Decimal(0))


def now(here: Runtime) -> datetime:
    with here.sessions() as session:
        return session.execute(text("SELECT now()")).scalar_one()


def lacks(here: Runtime) -> bool:
    with here.sessions() as session:
        return meanings.lacks(session, MODEL)


def expire(here: Runtime) -> None:
    with here.sessions.begin() as session:
        session.execute(text("UPDATE meanings SET claimed_until = now() - interval '1 s'"))


@pytest.mark.parametrize("served", [[GOOD]], indirect=True)
def test_kernels_lessons_and_problems_are_embedded_and_paid_for_once(here: Runtime, served: FakeOpenAI) -> None:
    known(here)
    problems(here, 1, "of a job that waits")
    assert embed(here)
    assert [row.item_id.partition("_")[0] for row in rows(here)] == ["kernel", "kernel", "lesson", "problem:p0"]
    assert all(row.vector and row.claimed_until is None and row.embedder == MODEL for row in rows(here))
    assert [row.usd for row in rows(here)] == [Decimal("0.025")] * 4
    (request,) = served.requests
    assert (request.path, request.authorization) == ("/v1/embeddings", f"Bearer {KEY}")
    assert set(request.body) == {"model", "input"}, "what is meant for chats is not sent"
    problem, lesson, *kernels = request.texts
    assert "of a job that waits" in problem and "raising BLOCK" in lesson
    assert all("times the fastest baseline" in kernel and "BLOCK = 128" in kernel for kernel in kernels)
    assert embed(here) and len(served.requests) == 1, "there is nothing left to embed"


@pytest.mark.parametrize(
    "served", [([GOOD], {}), ([Answer(usage=None, repeat=True)], PRICE)], ids=["price", "tokens"], indirect=True
)
def test_a_price_that_is_not_known_is_null(here: Runtime, served: FakeOpenAI) -> None:
    problems(here, 2)
    assert embed(here)
    assert [(bool(row.vector), row.usd) for row in rows(here)] == [(True, None)] * 2


FAILURES = [
    ([Answer(status=500, error=f"no luck with {KEY}"), GOOD], PRICE),
    ([Answer(status=401, error=f"no luck with {KEY}"), GOOD], PRICE),
    ([Answer(hang_s=30.0), GOOD], PRICE | {"timeout_s": 0.3}),
]


@pytest.mark.parametrize("served", FAILURES, ids=["500", "401", "hang"], indirect=True)
def test_a_call_that_fails_is_a_warning_and_made_again_after_a_minute(here: Runtime, served: FakeOpenAI) -> None:
    wanted = problems(here, 3)
    with capture_logs() as logs:
        assert not embed(here)
    (warning,) = [line for line in logs if line["event"] == "knowledge.not_embedded"]
    assert (warning["log_level"], warning["items"]) == ("warning", 3)
    assert KEY not in str(logs) and "number 1" not in str(logs)
    assert len(served.requests) == 1, "no client below retries on its own"
    assert (embedded(here), {row.item_id for row in rows(here)}) == (set(), wanted)
    waits = [row.claimed_until - now(here) for row in rows(here) if row.claimed_until]
    assert len(waits) == 3 and all(timedelta(seconds=50) < wait <= timedelta(seconds=60) for wait in waits)
    assert embed(here) and len(served.requests) == 1, "not before its time"
    expire(here)
    assert embed(here)
    assert (embedded(here), paid_usd(here)) == (wanted, A_CALL_USD)


@pytest.mark.parametrize("served", [[GOOD]], indirect=True)
def test_what_a_killed_worker_had_claimed_is_taken_over(here: Runtime, served: FakeOpenAI) -> None:
    wanted = problems(here, 2)
    with here.sessions.begin() as session:
        assert {item.item_id for item in meanings.claim(session, MODEL)} == wanted
    assert embed(here) and served.requests == [], "it is held"
    expire(here)
    assert embed(here)
    assert (embedded(here), len(served.requests)) == (wanted, 1)


@pytest.mark.parametrize("served", [[Answer(hang_s=0.5, repeat=True)]], indirect=True)
def test_two_workers_at_once_pay_once(here: Runtime, served: FakeOpenAI) -> None:
    wanted = problems(here, meanings.BATCH + 8)
    together = threading.Barrier(2)

    def work() -> None:
        together.wait()
        embed(here)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    texts = [asked_for for request in served.requests for asked_for in request.texts]
    assert len(texts) == len(set(texts)) == len(wanted)
    assert (embedded(here), paid_usd(here)) == (wanted, 2 * A_CALL_USD)


@pytest.mark.parametrize("served", [[GOOD]], indirect=True)
def test_after_some_calls_others_have_their_turn(
    here: Runtime, served: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MAX_BATCHES", 1)
    problems(here, meanings.BATCH + 1)
    assert embed(here) and lacks(here)
    assert len(embedded(here)) == meanings.BATCH


@pytest.mark.parametrize("served", [[Answer(status=400, match="number 3,", repeat=True), GOOD]], indirect=True)
def test_a_text_that_is_refused_does_not_keep_the_others_waiting(here: Runtime, served: FakeOpenAI) -> None:
    wanted = problems(here, 8)
    assert embed(here)
    assert wanted - embedded(here) == {"problem:p3"}
    assert len(served.requests) == 7, "each half once: 8, 4, 2, 1, 1, 2 and 4 texts"
    (refused,) = [row for row in rows(here) if row.vector is None]
    assert refused.claimed_until is not None and refused.claimed_until - now(here) > timedelta(minutes=50)
    assert not lacks(here)


BODIES: list[Any] = [
    {"data": []},
    {"data": None},
    {"data": [{"object": "embedding", "index": n, "embedding": [1.0]} for n in range(2)]},
    {"data": [{"object": "embedding", "index": 0, "embedding": []}]},
    '{"data": [{"object": "embedding", "index": 0, "embedding": [NaN]}]}',
]


@pytest.mark.parametrize(
    "served", [[Answer(body=body)] for body in BODIES], ids=["none", "null", "two", "no places", "NaN"], indirect=True
)
def test_an_answer_that_does_not_fit_is_not_stored(here: Runtime, served: FakeOpenAI) -> None:
    problems(here, 1)
    embed(here)
    (row,) = rows(here)
    assert (row.vector, row.text_hash, len(served.requests)) == (None, None, 1)
    assert row.claimed_until is not None and row.claimed_until > now(here)


SHUFFLED = {"data": [{"object": "embedding", "index": n, "embedding": [float(n), 1.0]} for n in (1, 0)]}


@pytest.mark.parametrize("served", [[Answer(body=SHUFFLED)]], indirect=True)
def test_vectors_are_given_to_their_texts_by_index(here: Runtime, served: FakeOpenAI) -> None:
    problems(here, 2)
    assert embed(here)
    assert [row.vector for row in rows(here)] == [pack([0.0, 1.0]), pack([1.0, 1.0])]


@pytest.mark.parametrize("served", [[GOOD, GOOD]], indirect=True)
def test_a_lesson_that_was_rewritten_gets_a_new_vector_and_keeps_the_old_one_till_then(
    here: Runtime, served: FakeOpenAI
) -> None:
    known(here)
    embed(here)
    (old,) = [row for row in rows(here) if row.item_id.startswith("lesson_")]
    with here.sessions.begin() as session:
        session.execute(text("UPDATE lessons SET text = 'rewritten'"))
    with here.sessions.begin() as session:
        assert [item.item_id for item in meanings.claim(session, MODEL)] == [old.item_id]
        assert meanings.vectors_of(session, MODEL, [old.item_id]) == {old.item_id: old.vector}
    expire(here)
    assert embed(here)
    (new,) = [row for row in rows(here) if row.item_id == old.item_id]
    assert new.vector != old.vector
    assert new.usd == (old.usd or 0) + A_CALL_USD, "what the first one cost stays on record"
    assert len(served.requests[-1].texts) == 1 and not lacks(here)


SOURCE = "class ModelNew: ...\n"


@pytest.mark.parametrize("served", [[Answer(source=SOURCE, repeat=True)]], indirect=True)
def test_proposals_are_told_with_the_meaning_and_never_wait_for_it(here: Runtime, served: FakeOpenAI) -> None:
    known(here)
    job = make_job(here.sessions, problem_hash="new", models=(MODEL,))
    early, late = [
        candidate_id for candidate_id, on in zip(asked(here, job, count=5), with_retrieval(job), strict=True) if on
    ][:2]
    propose(here, claim_kind(here.sessions, WorkKind.PROPOSE, early))
    assert [request.path for request in served.requests] == ["/v1/chat/completions"]
    assert early and not [use for use in uses(here, early) if "meaning" in use.parts]
    embed(here)
    propose(here, claim_kind(here.sessions, WorkKind.PROPOSE, late))
    assert [request.path for request in served.requests[1:]] == ["/v1/embeddings", "/v1/chat/completions"]
    assert {use.kind for use in uses(here, late) if "meaning" in use.parts} == {"kernel", "lesson"}


# --- who rings for it -------------------------------------------------------------------------------------------------


def waiting(broker: Redis) -> list[str]:
    """The tasks that wait on the queue `llm`."""
    raw = broker.lrange(f"{client.KEY_PREFIX}llm", 0, -1)
    assert isinstance(raw, list)
    return [json.loads(message)["headers"]["task"] for message in raw]


@pytest.mark.parametrize("served", [[Answer(status=500), GOOD]], indirect=True)
def test_the_reaper_rings_once_and_again_when_that_was_heard(
    here: Runtime, served: FakeOpenAI, broker: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_current", here)
    reaping.reap(here)
    assert waiting(broker) == [], "nothing lacks a vector"
    problems(here, 1)
    for _ in range(3):
        reaping.reap(here)
    assert waiting(broker) == ["kernelwright.embed"]
    broker.delete(f"{client.KEY_PREFIX}llm")
    tasks.embed_task(MODEL)
    expire(here)
    reaping.reap(here)
    assert waiting(broker) == [], "not at once after a failure"
    tasks.embed_task(MODEL)
    with here.sessions.begin() as session:
        session.execute(text("DELETE FROM meanings"))
    reaping.reap(here)
    assert waiting(broker) == ["kernelwright.embed"]


def test_without_a_model_nothing_is_rung_for_and_nothing_claimed(configured: Settings, broker: Redis) -> None:
    plain = Runtime(configured, OWNER, ("control",))
    problems(plain, 1)
    reaping.reap(plain)
    assert not embed(plain)
    assert (waiting(broker), rows(plain)) == ([], [])
    plain.close()
