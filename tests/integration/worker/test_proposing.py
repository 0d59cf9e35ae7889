"""Proposing with real proposers: the tuner, a model behind a real HTTP server, and the built-in one's process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from db import candidates, jobs, recovery
from db.ledger import Claim, Fenced
from db.models import Candidate, Job
from db.proposals import get_proposal
from db.vocabulary import WorkKind
from search.prompts import build_prompt
from search.proposing import Proposal
from search.recording import request_from
from tests.support.fake_openai import Answer, FakeOpenAI
from tests.support.ledger import (
    PROBLEM,
    claim_kind,
    evaluate,
    expire,
    fresh,
    make_candidates,
    make_job,
    propose,
    states,
)
from worker import builtin_process, proposing
from worker.briefing import read_brief
from worker.builtin_process import BuiltinProcess
from worker.heartbeat import CancelRequested
from worker.runtime import Runtime

# litellm leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODEL = "openai/scripted"
TUNABLE = """
import torch

TUNABLES = {"BLOCK": [64, 128, 256]}
BLOCK = 128


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
"""
ANSWER = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
"""


def candidate(here: Runtime, candidate_id: str) -> Candidate:
    with here.sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None
    return row.candidate


def run_propose(here: Runtime, candidate_id: str) -> Candidate:
    proposing.propose(here, claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id))
    return candidate(here, candidate_id)


def tuned_parent(here: Runtime, job: Job) -> str:
    (parent,) = make_candidates(here.sessions, job)
    propose(here.sessions, parent, TUNABLE, tunable=True)
    evaluate(here.sessions, parent, speedup=1.2)
    return parent


@pytest.fixture
def one_by_one(here: Runtime) -> Iterator[Runtime]:
    """A worker that judges each configuration as a candidate of its own."""
    settings = here.settings.model_copy(update={"tune_configurations": 0})
    runtime = Runtime(settings, here.owner, here.queues)
    yield runtime
    runtime.close()


def test_tuning_tries_each_configuration_once_and_then_says_that_it_is_exhausted(one_by_one: Runtime) -> None:
    here = one_by_one
    job = make_job(here.sessions)
    parent = tuned_parent(here, job)
    children = make_candidates(here.sessions, job, 3, operator="tune", parents=(parent,))
    made = [run_propose(here, child) for child in children]
    assert {json.dumps(child.params) for child in made[:2]} == {'{"BLOCK": 64}', '{"BLOCK": 256}'}
    assert all("BLOCK = 64" in (child.source or "") or "BLOCK = 256" in (child.source or "") for child in made[:2])
    assert made[0].tunable
    assert (made[2].state, made[2].failure) == ("rejected", "exhausted")


def test_the_tuner_is_told_of_every_other_configuration(one_by_one: Runtime) -> None:
    here = one_by_one
    job = make_job(here.sessions)
    parent = tuned_parent(here, job)
    first, second = make_candidates(here.sessions, job, 2, operator="tune", parents=(parent,))
    params = run_propose(here, first).params
    evaluate(here.sessions, first, speedup=1.9)
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, second)
    with here.sessions.begin() as session:
        brief = read_brief(session, claim)
    assert [(dict(trial.params), trial.speedup) for trial in brief.request.trials] == [(params, 1.9)]
    (told,) = brief.request.parents
    assert (told.id, told.source, told.verdict, told.speedup) == (parent, TUNABLE, "ok", 1.2)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ({"text": "Bound: memory."}, "Bound: memory."),
        ({}, None),
        ({"text": ""}, None),
        ({"text": ["Bound: memory."]}, None),
        ("no profile", None),
    ],
)
def test_the_proposer_is_told_what_the_parents_profile_found(here: Runtime, profile: object, told: str | None) -> None:
    job = make_job(here.sessions)
    (parent,) = make_candidates(here.sessions, job)
    propose(here.sessions, parent)
    evaluate(here.sessions, parent, profile=profile)
    (child,) = make_candidates(here.sessions, job, operator="refine", parents=(parent,), proposer="llm", queue="llm")
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, child)
    with here.sessions.begin() as session:
        brief = read_brief(session, claim)
    assert [known.diagnosis for known in brief.request.parents] == [told]


def test_the_index_of_a_built_in_seed_is_its_rank_among_them(here: Runtime) -> None:
    job = make_job(here.sessions, seed=40)
    first, _ = make_candidates(here.sessions, job, 2)
    make_candidates(here.sessions, job, 1, proposer="llm", model=MODEL, queue="llm")
    make_candidates(here.sessions, job, 1, operator="tune", parents=(first,))
    (last,) = make_candidates(here.sessions, job, 1)
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, last)
    with here.sessions.begin() as session:
        brief = read_brief(session, claim)
    assert (brief.builtin_index, brief.request.ordinal, brief.request.seed) == (2, 5, 45)
    assert (brief.hardware, brief.language, brief.request.problem_source) == ("cpu", "cpp", PROBLEM)


STEPS = "".join(f"    x{n + 1} = x{n} + {n} * x{n}.mean()\n" for n in range(30))
LONG = f"import torch\n\n\ndef lifted(x0):\n{STEPS}    return x30\n{ANSWER[12:]}"


@pytest.mark.parametrize(
    ("operator", "source", "state"),
    [
        ("seed", "import math\n" + LONG.replace("lifted", "raised"), "rejected"),
        ("rewrite", "import math\n" + LONG.replace("lifted", "raised"), "rejected"),
        ("refine", "import math\n" + LONG.replace("lifted", "raised"), "queued"),
        ("seed", LONG.replace("+ 29 *", "+ 31 *"), "queued"),
        ("seed", LONG.replace(".mean()", ".amax()"), "queued"),
    ],
    ids=["seed", "rewrite", "refine", "parameters", "another idea"],
)
def test_what_promises_something_new_must_not_be_nearly_what_there_is(
    here: Runtime, operator: str, source: str, state: str
) -> None:
    job = make_job(here.sessions)
    (accepted,) = make_candidates(here.sessions, job)
    propose(here.sessions, accepted, LONG)
    evaluate(here.sessions, accepted)
    parents = () if operator == "seed" else (accepted,)
    (child,) = make_candidates(
        here.sessions, job, operator=operator, proposer="llm", model=MODEL, queue="llm", parents=parents
    )
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, child)
    with here.sessions.begin() as session:
        brief = read_brief(session, claim)
    proposing._store(here, claim, brief, Proposal(source=source))
    found = candidate(here, child)
    assert found.state == state, found.failure_detail
    assert found.duplicate_of == (accepted if state == "rejected" else None)
    if state == "rejected":
        assert "nearly the same source" in (found.failure_detail or "")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    """A provider that answers twice: the same candidate, differently commented."""
    answers = [
        Answer(source=ANSWER, usage={"prompt_tokens": 1000, "completion_tokens": 500}),
        Answer(source="# again\n" + ANSWER, usage={"prompt_tokens": 1000, "completion_tokens": 500}),
    ]
    with FakeOpenAI(answers) as server:
        options = {
            "api_base": server.base_url,
            "api_key": "sk-none",
            "usd_per_mtok_in": "100",
            "usd_per_mtok_out": "200",
        }
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", json.dumps({"*": options}))
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield server


def asked(here: Runtime, job: Job, count: int = 1) -> list[str]:
    return make_candidates(here.sessions, job, count, proposer="llm", model=MODEL, queue="llm")


def calls(here: Runtime) -> list[tuple[str, str]]:
    with here.sessions.begin() as session:
        rows = session.execute(text("SELECT state, cost_usd::text FROM llm_calls ORDER BY id"))
        return [(state, cost) for state, cost in rows]


def test_a_models_answer_becomes_a_candidate_and_its_price_is_booked(here: Runtime, model: FakeOpenAI) -> None:
    job = make_job(here.sessions, models=(MODEL,))
    (candidate_id,) = asked(here, job)
    made = run_propose(here, candidate_id)
    assert (made.state, made.source) == ("queued", ANSWER)
    assert states(here.sessions, WorkKind.EVALUATE) == ["queued"]
    assert made.cost_usd == fresh(here.sessions, job).cost_usd == Decimal("0.2")
    assert calls(here) == [("finished", "0.200000")]
    assert PROBLEM.strip() in model.requests[0].text
    with here.sessions.begin() as session:
        proposal = get_proposal(session, candidate_id)
    assert proposal is not None and proposal.request is not None
    again = build_prompt(request_from(proposal.request, PROBLEM, {}))
    assert list(again.messages) == proposal.messages


def test_the_same_answer_in_other_words_is_a_duplicate_that_was_paid_for(here: Runtime, model: FakeOpenAI) -> None:
    job = make_job(here.sessions, models=(MODEL,))
    first, second = asked(here, job, 2)
    run_propose(here, first)
    twin = run_propose(here, second)
    assert (twin.state, twin.failure, twin.duplicate_of) == ("rejected", "duplicate", first)
    assert twin.source == "# again\n" + ANSWER
    assert fresh(here.sessions, job).cost_usd == Decimal("0.4")
    assert states(here.sessions, WorkKind.EVALUATE) == ["queued"]


def test_a_re_run_reads_the_answer_that_was_paid_for(
    here: Runtime, model: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(here.sessions, models=(MODEL,))
    (candidate_id,) = asked(here, job)
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id)
    with monkeypatch.context() as patch:
        patch.setattr(proposing, "_store", _die)
        with pytest.raises(Killed):
            proposing.propose(here, claim)
    expire(here.sessions, claim)
    with here.sessions.begin() as session:
        recovery.reap(session)
    assert run_propose(here, candidate_id).source == ANSWER
    assert len(model.requests) == 1
    assert fresh(here.sessions, job).cost_usd == Decimal("0.2")


class Killed(BaseException):
    """Stands for the death of the process at this point."""


def _die(*_: Any) -> None:
    raise Killed


def test_an_answer_that_comes_too_late_is_booked_and_not_used(
    here: Runtime, model: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(here.sessions, models=(MODEL,))
    (candidate_id,) = asked(here, job)
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id)
    with here.sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_token = gen_random_uuid() WHERE id = :id"), {"id": claim.id})
    with pytest.raises(Fenced):
        proposing.propose(here, claim)
    assert candidate(here, candidate_id).state == "proposing"
    assert fresh(here.sessions, job).cost_usd == Decimal("0.2")


def test_a_provider_that_fails_is_a_rejection_with_its_words(here: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI([Answer(status=401, error="no such key")]) as server:
        options = {"*": {"api_base": server.base_url, "api_key": "sk-none"}}
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", json.dumps(options))
        (candidate_id,) = asked(here, make_job(here.sessions, models=(MODEL,)))
        made = run_propose(here, candidate_id)
    assert (made.state, made.failure) == ("rejected", "provider_error")
    assert "no such key" in (made.failure_detail or "")


def brief_of(here: Runtime, **job: Any) -> tuple[Claim, Any]:
    (candidate_id,) = make_candidates(here.sessions, make_job(here.sessions, **job))
    claim = claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id)
    with here.sessions.begin() as session:
        return claim, read_brief(session, claim)


def test_a_built_in_proposer_that_takes_too_long_is_a_provider_error(here: Runtime) -> None:
    _, brief = brief_of(here)
    proposal = BuiltinProcess(here.settings.home_path, deadline_s=0.05).propose(brief)
    assert (proposal.failure, proposal.detail) == ("provider_error", "the built-in proposer took longer than 0.05 s")


def test_a_cancel_kills_the_built_in_proposer(here: Runtime) -> None:
    stuck = PROBLEM + "\nimport time\n\ntime.sleep(600)\n"
    claim, _ = brief_of(here, problem_hash="stuck", problem_source=stuck)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            proposing.propose(here, claim)
        except CancelRequested as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with here.sessions.begin() as session:
        jobs.cancel_job(session, claim.job_id)
    thread.join(60)
    assert len(raised) == 1


def test_a_reference_that_crashes_the_built_in_proposer_is_a_provider_error(here: Runtime) -> None:
    crash = PROBLEM + "\nimport os\n\nos._exit(3)\n"
    _, brief = brief_of(here, problem_hash="crash", problem_source=crash)
    proposal = BuiltinProcess(here.settings.home_path).propose(brief)
    assert proposal.failure == "provider_error"
    assert "status" in (proposal.detail or "")


def test_the_built_in_proposer_gets_no_secrets(monkeypatch: pytest.MonkeyPatch, here: Runtime) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    environment = builtin_process._environment(here.settings.home_path)
    assert not [name for name in environment if "KEY" in name or "URL" in name]
    assert environment["KERNELWRIGHT_HOME"] == str(here.settings.home_path)
