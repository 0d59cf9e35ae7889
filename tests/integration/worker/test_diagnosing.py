"""A judge model before a repair: its words reach the prompt, its price the books, and its failures nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from db import candidates, jobs
from db.models import Candidate
from db.vocabulary import WorkKind
from tests.support.fake_openai import Answer, FakeOpenAI
from tests.support.ledger import claim_kind, evaluate, make_candidates, make_job, propose, states
from worker import proposing
from worker.runtime import Runtime

# litellm leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CODER, JUDGE = "openai/coder", "openai/judge"
BROKEN = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x[:-1]\n"
MENDED = BROKEN.replace("x[:-1]", "x")
WORDS = "The slice drops the last row."
IS_DIAGNOSIS, IS_PROPOSAL = "^You review", "^You write"
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500}


def diagnosis(**answer: Any) -> Answer:
    return Answer(match=IS_DIAGNOSIS, usage=USAGE, **answer)


MENDING = Answer(match=IS_PROPOSAL, source=MENDED, usage=USAGE)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(request.param) as server:
        price = {"usd_per_mtok_in": "100", "usd_per_mtok_out": "200"}
        options = {"api_base": server.base_url, "api_key": "sk-none", **price}
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", json.dumps({"*": options}))
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield server


def repaired(here: Runtime, operator: str = "repair", **job_fields: Any) -> Candidate:
    """A job with a judge model, a broken candidate of it, and what its repair came to."""
    job = make_job(here.sessions, **{"models": (CODER,), "diagnosis_model": JUDGE, **job_fields})
    (broken,) = make_candidates(here.sessions, job)
    propose(here.sessions, broken, BROKEN)
    evaluate(here.sessions, broken, verdict="incorrect", reason="1 row is missing", speedup=None, timed=False)
    by_llm = {"proposer": "llm", "model": CODER, "queue": "llm"}
    (child,) = make_candidates(here.sessions, job, operator=operator, parents=(broken,), **by_llm)
    proposing.propose(here, claim_kind(here.sessions, WorkKind.PROPOSE, child))
    with here.sessions.begin() as session:
        row = candidates.get_candidate(session, child)
    assert row is not None
    return row.candidate


def calls(here: Runtime) -> list[tuple[str, str, str]]:
    with here.sessions.begin() as session:
        rows = session.execute(text("SELECT key, model, state FROM llm_calls ORDER BY started_at"))
        return [(key, model, state) for key, model, state in rows]


@pytest.mark.parametrize("served", [[diagnosis(content=WORDS), MENDING]], indirect=True)
def test_a_diagnosis_reaches_the_prompt_and_is_booked_on_the_candidate(here: Runtime, served: FakeOpenAI) -> None:
    child = repaired(here)
    assert (child.state, child.source) == ("queued", MENDED)
    assert calls(here) == [("diagnose", JUDGE, "finished"), ("propose", CODER, "finished")]
    assert child.cost_usd == Decimal("0.4"), "both calls"
    asked, proposed = served.requests
    assert (asked.body["model"], proposed.body["model"]) == ("judge", "coder")
    assert "1 row is missing" in asked.text and WORDS not in asked.text
    assert f"```text\n{WORDS}\n```" in proposed.text


@pytest.mark.parametrize(
    "served", [[diagnosis(status=401, error="no such key"), MENDING], [diagnosis(content=""), MENDING]], indirect=True
)
def test_a_judge_model_without_an_answer_costs_the_proposal_nothing(here: Runtime, served: FakeOpenAI) -> None:
    assert repaired(here).source == MENDED
    assert "# Diagnosis" not in served.requests[-1].text


@pytest.mark.parametrize("served", [[MENDING]], indirect=True)
def test_the_last_call_of_a_cap_is_the_proposals(here: Runtime, served: FakeOpenAI) -> None:
    assert repaired(here, budget_calls=1).source == MENDED
    assert [key for key, _, _ in calls(here)] == ["propose"]


@pytest.mark.parametrize("served", [[MENDING]], indirect=True)
@pytest.mark.parametrize(("operator", "model"), [("rewrite", JUDGE), ("repair", None)])
def test_nobody_is_asked_for_a_large_step_or_without_a_judge_model(
    here: Runtime, served: FakeOpenAI, operator: str, model: str | None
) -> None:
    assert repaired(here, operator, diagnosis_model=model).source == MENDED
    assert [request.body["model"] for request in served.requests] == ["coder"]


@pytest.mark.parametrize("served", [[]], indirect=True)
def test_a_call_that_a_cap_forbids_is_not_made(here: Runtime, served: FakeOpenAI) -> None:
    child = repaired(here, budget_tokens=0)
    assert (child.state, child.failure) == ("rejected", "budget")
    assert child.failure_detail == "the cap on tokens of the job is used up"
    assert (served.requests, calls(here)) == ([], [])
    assert states(here.sessions, WorkKind.EVALUATE) == ["done"], "of the parent alone"


@pytest.mark.parametrize("served", [[diagnosis(content=WORDS), MENDING]], indirect=True)
def test_a_job_counts_its_calls_and_tokens(here: Runtime, served: FakeOpenAI) -> None:
    child = repaired(here)
    with here.sessions.begin() as session:
        job = jobs.fetch_job(session, child.job_id)
    assert (job.llm_calls, job.llm_tokens) == (2, 3000)
