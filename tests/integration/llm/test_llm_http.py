"""The language-model proposer through the real litellm against a real HTTP server on loopback."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import SecretStr

from search.llm import LlmProposer
from search.llm_options import LlmOptions, ModelOptions
from search.proposing import Outcome, Parent, ProposalRequest
from search.types import Failure, Operator, Target
from tests.support.fake_openai import Answer, FakeOpenAI

# litellm leaves sockets to the garbage collector: see also `what_litellm_leaves`.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FILE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
EDIT = "Faster.\n<<<<<<< SEARCH\n        return x * 2\n=======\n        return x + x\n>>>>>>> REPLACE\n"
KEY = "sk-secret-0123456789"


class Waits:
    """A clock that only sleeping and real requests move, and a record of the sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def clock(self) -> float:
        return time.monotonic() + sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def waits() -> Waits:
    return Waits()


def proposer(server: FakeOpenAI, waits: Waits, **options: object) -> LlmProposer:
    model = ModelOptions.model_validate({"api_base": server.base_url, "api_key": KEY})
    settings = LlmOptions.model_validate({"timeout_s": 30, "deadline_s": 100, "models": {"*": model}, **options})
    return LlmProposer(settings, clock=waits.clock, sleep=waits.sleep, dice=random.Random(0))


def request(operator: str = Operator.SEED, model: str = "openai/scripted", **changes: object) -> ProposalRequest:
    values: dict[str, object] = {
        "problem_name": "double",
        "problem_source": "class Model: ...\n",
        "target": Target("cpu", "cpp"),
        "operator": operator,
        "model": model,
        "parents": (Parent(source=FILE, verdict="ok", speedup=1.2),) if operator != Operator.SEED else (),
    }
    return ProposalRequest(**{**values, **changes})  # type: ignore[arg-type]


def propose(answers: list[Answer], waits: Waits, asked: ProposalRequest | None = None, **options: object) -> Outcome:
    with FakeOpenAI(answers) as server:
        outcome = proposer(server, waits, **options).propose(asked or request())
        assert len(outcome.calls) == 1
        assert len(server.requests) == outcome.calls[0].attempts, "one layer of retries, and it counts"
        return outcome


def test_a_right_kernel_is_proposed_and_its_call_is_accounted_for(waits: Waits) -> None:
    with FakeOpenAI([Answer(source=FILE, usage={"prompt_tokens": 1200, "completion_tokens": 340})]) as server:
        outcome = proposer(server, waits).propose(request(model="openai/gpt-4o-mini"))
    assert outcome.proposal.source == FILE
    assert outcome.proposal.plan == "A kernel from the script."
    (call,) = outcome.calls
    assert (call.tokens_in, call.tokens_out) == (1200, 340)
    assert (call.cost_usd, call.cost_source) == (Decimal("0.00038400"), "litellm")
    assert (call.error, call.attempts, call.finish_reason) == (None, 1, "stop")
    assert call.latency_s > 0
    (asked,) = server.requests
    assert asked.path == "/v1/chat/completions"
    assert asked.authorization == f"Bearer {KEY}"
    assert asked.body["messages"] == [dict(message) for message in call.prompt]
    assert asked.body["model"] == "gpt-4o-mini"
    assert "stream" not in asked.body or asked.body["stream"] is False


@pytest.mark.parametrize(
    ("answer", "operator", "failure"),
    [
        (Answer(content="One could fuse both loops."), Operator.SEED, Failure.NO_CODE),
        (Answer(content=f"```python\n{FILE}", finish_reason="length"), Operator.SEED, Failure.TRUNCATED),
        (Answer(content=EDIT.replace("x * 2", "x * 7")), Operator.REFINE, Failure.DIFF_FAILED),
        (Answer(refusal="I can't help with that."), Operator.SEED, Failure.REFUSED),
        (Answer(content="I'm sorry, but I can't help with that."), Operator.SEED, Failure.REFUSED),
        (Answer(content=None, finish_reason="content_filter"), Operator.SEED, Failure.REFUSED),
    ],
)
def test_an_answer_without_a_candidate_has_a_named_failure_and_is_paid_for(
    waits: Waits, answer: Answer, operator: str, failure: Failure
) -> None:
    outcome = propose([answer], waits, request(operator, model="openai/gpt-4o-mini"))
    assert (outcome.proposal.source, outcome.proposal.failure) == (None, failure)
    assert outcome.calls[0].cost_usd == Decimal("0.00045000")
    assert outcome.calls[0].error is None


def test_of_two_blocks_the_one_with_the_candidate_is_taken(waits: Waits) -> None:
    answer = Answer(content=f"Build:\n```sh\ng++ x.cpp\n```\nKernel:\n```python\n{FILE}```\n")
    assert propose([answer], waits).proposal.source == FILE


def test_edits_are_applied_to_the_parent(waits: Waits) -> None:
    outcome = propose([Answer(content=EDIT)], waits, request(Operator.REFINE))
    assert outcome.proposal.source == FILE.replace("x * 2", "x + x")


def test_a_429_is_waited_out_as_long_as_it_asks(waits: Waits) -> None:
    limited = Answer(status=429, headers={"Retry-After": "7"}, error="slow down")
    dated = Answer(
        status=429, headers={"Date": "Sat, 21 Nov 2026 10:00:00 GMT", "Retry-After": "Sat, 21 Nov 2026 10:00:20 GMT"}
    )
    outcome = propose([limited, dated, Answer(source=FILE)], waits)
    assert outcome.proposal.source == FILE
    assert outcome.calls[0].attempts == 3
    first, second = waits.slept
    assert 7.0 <= first <= 7.7
    assert 20.0 <= second <= 22.0


def test_a_500_and_a_malformed_body_are_tried_again_with_growing_pauses(waits: Waits) -> None:
    answers = [Answer(status=500), Answer(status=503), Answer(body="<html>"), Answer(body={"choices": []})]
    outcome = propose([*answers, Answer(source=FILE)], waits)
    assert outcome.proposal.source == FILE
    assert outcome.calls[0].attempts == 5
    assert [low <= slept <= 2 * low for low, slept in zip([0.5, 1.0, 2.0, 4.0], waits.slept, strict=True)] == [True] * 4


def test_a_hang_ends_with_the_timeout_and_is_tried_again(waits: Waits) -> None:
    outcome = propose([Answer(hang_s=60), Answer(source=FILE, repeat=True)], waits, timeout_s=1)
    assert outcome.proposal.source == FILE
    assert outcome.calls[0].attempts >= 2


@pytest.mark.parametrize(
    ("answer", "attempts"),
    [
        (Answer(status=401, error=f"Incorrect API key provided: {KEY}"), 1),
        (Answer(status=400, error="unknown parameter"), 1),
        (Answer(status=404, error="no such model"), 1),
        (Answer(status=500, repeat=True), 4),
        (Answer(hang_s=60, repeat=True), 4),
        (Answer(status=429, headers={"Retry-After": "3600"}, repeat=True), 1),
        (Answer(status=429, headers={"Retry-After": "40"}, repeat=True), 3),
        (Answer(body='{"choices": [null]}', repeat=True), 4),
        (Answer(body={"choices": [{"message": {"content": 5}}], "usage": 7}, repeat=True), 4),
    ],
)
def test_a_provider_that_fails_for_good(waits: Waits, answer: Answer, attempts: int) -> None:
    outcome = propose([answer], waits, max_attempts=4, timeout_s=0.3 if answer.hang_s else 30)
    (call,) = outcome.calls
    assert outcome.proposal.failure == Failure.PROVIDER_ERROR
    assert (call.attempts, call.answer, call.cost_usd, call.cost_source) == (attempts, None, None, "unknown")
    assert call.error
    assert outcome.proposal.detail == call.error
    assert KEY not in f"{outcome}"
    assert "Traceback" not in call.error
    assert sum(waits.slept) < 100


def test_content_policy_is_a_refusal_and_not_tried_again(waits: Waits) -> None:
    answer = Answer(status=400, error="violates content policy", error_code="content_policy_violation")
    assert propose([answer], waits).proposal.failure == Failure.REFUSED


def test_nobody_listening_is_a_provider_error(waits: Waits) -> None:
    with FakeOpenAI() as server:
        gone = proposer(server, waits, max_attempts=2)
    outcome = gone.propose(request())
    assert outcome.proposal.failure == Failure.PROVIDER_ERROR
    assert outcome.calls[0].attempts == 2


@pytest.mark.parametrize("model", ["no-such-provider/x", "nonsense", "anthropic/claude-sonnet-4-5"])
def test_a_model_that_cannot_be_reached_fails_at_once(
    waits: Waits, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    outcome = LlmProposer(LlmOptions(), waits.clock, waits.sleep).propose(request(model=model))
    assert outcome.proposal.failure == Failure.PROVIDER_ERROR
    assert waits.slept == []


def test_a_missing_key_fails_at_once(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    outcome = LlmProposer(LlmOptions(), waits.clock, waits.sleep).propose(request(model="openai/gpt-5"))
    assert outcome.proposal.failure == Failure.PROVIDER_ERROR
    assert waits.slept == []


@pytest.mark.parametrize(
    ("usage", "options", "cost"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 10}, {}, (100, 10, None, "unknown")),
        (None, {}, (None, None, None, "unknown")),
        ({"prompt_tokens": 100, "completion_tokens": 10, "cost": float("inf")}, {}, (100, 10, None, "unknown")),
        (
            {"prompt_tokens": 2_000_000, "completion_tokens": 10},
            {"usd_per_mtok_in": "0.5", "usd_per_mtok_out": "2"},
            (2_000_000, 10, Decimal("1.00002000"), "override"),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 10, "cost": 0.0125},
            {"usd_per_mtok_in": "0.5", "usd_per_mtok_out": "2"},
            (100, 10, Decimal("0.01250000"), "provider"),
        ),
    ],
)
def test_an_unknown_price_is_unknown_and_not_zero(
    waits: Waits, usage: dict[str, float] | None, options: dict[str, str], cost: tuple[object, ...]
) -> None:
    with FakeOpenAI([Answer(source=FILE, usage=usage)]) as server:
        model = ModelOptions.model_validate({"api_base": server.base_url, "api_key": KEY, **options})
        settings = LlmOptions(models={"openai/scripted": model})
        (call,) = LlmProposer(settings, waits.clock, waits.sleep).propose(request()).calls
    assert (call.tokens_in, call.tokens_out, call.cost_usd, call.cost_source) == cost


def test_options_are_sent_as_the_provider_names_them(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-other")
    with FakeOpenAI([Answer(source=FILE)]) as server:
        model = ModelOptions.model_validate(
            {"api_base": server.base_url, "api_key_env": "MY_KEY", "max_output_tokens": 99, "temperature": 0.5}
        )
        LlmProposer(LlmOptions(models={"*": model}), waits.clock, waits.sleep).propose(request())
    (asked,) = server.requests
    assert asked.authorization == "Bearer sk-other"
    assert (asked.body["max_tokens"], asked.body["temperature"]) == (99, 0.5)


def test_a_model_with_a_small_context_gets_a_shorter_prompt(waits: Waits) -> None:
    long = Parent(source=FILE + "# more\n" * 6_000, verdict="ok", speedup=1.2)
    sizes = []
    with FakeOpenAI([Answer(source=FILE, repeat=True)]) as server:
        for tokens in (None, 10_000):
            model = ModelOptions(api_base=server.base_url, api_key=SecretStr(KEY), max_prompt_tokens=tokens)
            asker = LlmProposer(LlmOptions(models={"*": model}), waits.clock, waits.sleep)
            asker.propose(request(Operator.REWRITE, parents=(long,)))
            sizes.append(len(server.requests[-1].text))
    assert sizes[0] > 42_000
    assert sizes[1] <= 40_000


def test_a_stored_call_reads_the_same_without_asking_again(waits: Waits) -> None:
    with FakeOpenAI([Answer(source=FILE)]) as server:
        asker = proposer(server, waits)
        call = asker.call(request())
        assert [asker.read(request(), call).source for _ in range(2)] == [FILE, FILE]
        assert len(server.requests) == 1


def test_many_threads_share_one_proposer(waits: Waits) -> None:
    with FakeOpenAI([Answer(source=FILE, repeat=True)]) as server:
        asker = proposer(server, waits)
        sources: list[str | None] = []
        threads = [
            threading.Thread(target=lambda: sources.append(asker.propose(request()).proposal.source)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sources == [FILE] * 8


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    script = [
        {"source": FILE, "match": "Reference double", "repeat": True},
        {"content": "none", "match": "Reference halve"},
    ]
    (tmp_path / "script.json").write_text(json.dumps(script))
    command = [sys.executable, "-m", "tests.support.fake_openai", "--script", str(tmp_path / "script.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["base_url"]
        process.kill()


def test_the_server_runs_as_a_process_of_its_own(served: tuple[subprocess.Popen[str], str], waits: Waits) -> None:
    process, base_url = served
    model = ModelOptions.model_validate({"api_base": base_url, "api_key": KEY})
    asker = LlmProposer(LlmOptions(models={"*": model}), waits.clock, waits.sleep)
    assert asker.propose(request()).proposal.source == FILE
    assert asker.propose(request(problem_name="halve")).proposal.failure == Failure.NO_CODE
    assert asker.propose(request(problem_name="halve")).proposal.failure == Failure.PROVIDER_ERROR
    with urllib.request.urlopen(base_url.replace("/v1", "/requests")) as asked:
        assert len(json.load(asked)) == 3
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0


@pytest.mark.parametrize("model", ["huggingface/{url}", "oobabooga/{url}"])
def test_a_name_that_names_a_server_is_not_asked(monkeypatch: pytest.MonkeyPatch, waits: Waits, model: str) -> None:
    """litellm would ask that very server, and show it the operator's key."""
    monkeypatch.setenv("HUGGINGFACE_API_KEY", KEY)
    with FakeOpenAI([Answer(content="here I am", repeat=True)]) as server:
        proposer = LlmProposer(LlmOptions(), clock=waits.clock, sleep=waits.sleep, dice=random.Random(0))
        call = proposer.call(request(model=model.format(url=server.base_url)))
        assert server.requests == []
    assert call.attempts == 1 and "is no model's name" in str(call.error)


@pytest.mark.parametrize("source", ["own key", "environment", "extra"])
def test_what_a_provider_quotes_of_a_key_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, waits: Waits, source: str
) -> None:
    """In an error and in an answer alike."""
    secret = {"own key": KEY, "environment": "hf-planted-secret", "extra": "aws-planted-secret"}[source]
    monkeypatch.setenv("HF_TOKEN", "hf-planted-secret")
    quoting = f"you sent {secret}, did you not"
    for answer in (Answer(status=403, error=quoting), Answer(content=quoting)):
        with FakeOpenAI([answer]) as server:
            given = {
                "api_base": server.base_url,
                "api_key": KEY,
                "extra": {"aws_secret_access_key": "aws-planted-secret"},
            }
            options = LlmOptions.model_validate({"models": {"*": given}})
            call = LlmProposer(options, clock=waits.clock, sleep=waits.sleep, dice=random.Random(0)).call(request())
        said = str(call.answer) + str(call.error)
        assert secret not in said and "you sent ***, did you not" in said
