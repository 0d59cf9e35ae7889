"""POST /v1/requests: plain words, a proposal, and the one job that it becomes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import keys, workers
from db.workers import WorkerFacts
from problems.catalog import bundled
from tests.integration.api.conftest import Bells

WORDS = "a Triton kernel for RMSNorm with residual in bf16 on H100"


def ask(http: httpx2.Client, words: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/requests", json={"request": words, **fields})
    assert answer.status_code == status, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_plain_words_become_a_problem_and_a_job_that_waits_to_be_confirmed(http: httpx2.Client) -> None:
    made = ask(http, WORDS, budget={"candidates": 7, "usd": "1.50"}, models=["openai/gpt-5"], labels={"team": "x"})
    proposal = made["proposal"]
    assert (made["state"], made["job_id"], made["request"]) == ("proposed", None, WORDS)
    assert (proposal["by"], proposal["score"], proposal["notes"]) == ("matcher", 1.0, [])
    assert proposal["problem"]["name"] == "rmsnorm_residual_bf16"
    assert {each["params"]["dtype"] for each in proposal["problem"]["workloads"]} == {"bfloat16"}
    assert proposal["job"]["target"] == {"hardware": "nvidia-h100", "language": "triton"}
    assert proposal["job"]["problem"]["source"] == proposal["source"]
    assert http.get("/v1/jobs").json()["data"] == []
    assert http.get(made["links"]["self"]).json() == made

    answer = http.post(made["links"]["confirm"])
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, job["links"]["self"])
    assert (job["state"], job["problem"]["hash"]) == ("queued", proposal["problem"]["hash"])
    assert (job["budget"]["candidates"], job["budget"]["usd"], job["models"]) == (7, "1.50", ["openai/gpt-5"])
    assert job["labels"] == {"team": "x"}
    after = http.get(made["links"]["self"]).json()
    assert (after["state"], after["job_id"]) == ("confirmed", job["id"])


def test_the_proposed_job_is_a_body_that_can_be_submitted_as_it_is(http: httpx2.Client) -> None:
    job = ask(http, WORDS)["proposal"]["job"]
    assert http.post("/v1/jobs", json=job | {"seed": 3}).status_code == 202


def test_a_request_becomes_one_job_however_often_it_is_confirmed(http: httpx2.Client, bells: Bells) -> None:
    confirm = ask(http, "softmax on my cpu in C++")["links"]["confirm"]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: http.post(confirm), range(6)))
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(kind for _, _, kind in bells.heard(2)) == ["admit", "advance"]


def test_what_is_bundled_already_is_proposed_by_its_name(http: httpx2.Client) -> None:
    proposal = ask(http, "softmax on my cpu in C++")["proposal"]
    assert (proposal["job"]["problem"], proposal["source"]) == ("softmax", bundled()["softmax"].source)


def test_a_preview_is_a_dry_run_of_the_job(http: httpx2.Client) -> None:
    made = ask(http, "softmax on my cpu in C++", models=["openai/unheard-of"])
    preview = http.post(made["links"]["confirm"], params={"dry_run": True})
    assert preview.status_code == 200
    assert preview.json()["problem"]["name"] == "softmax"
    assert preview.json()["estimate"]["unknown_prices"] == ["openai/unheard-of"]
    assert preview.json()["estimate"]["usd"] is None
    assert http.get("/v1/jobs").json()["data"] == []


def test_a_near_problem_says_how_it_differs(http: httpx2.Client) -> None:
    proposal = ask(http, "rmsnorm in c++ on a cpu in int8")["proposal"]
    assert proposal["adds"] == ["residual"]
    assert proposal["notes"] == [
        "rmsnorm_residual is the nearest bundled problem, not the same: it adds residual",
        "int8 was not set: a problem as a whole is not of this type, its file can name inputs that are",
    ]
    assert [each["name"] for each in proposal["alternatives"]] == [
        "rmsnorm_2d_backward",
        "embedding_grad_rmsnorm_backward",
        "rmsnorm_quant_fp8",
    ]


def test_live_workers_say_which_hardware_is_meant(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        workers.register(session, WorkerFacts("w", "box", 1, ("gpu.nvidia-h200",), "nvidia-h200"))
    made = ask(http, "softmax")
    assert made["proposal"]["job"]["target"] == {"hardware": "nvidia-h200", "language": "triton"}
    assert made["proposal"]["notes"][0] == "no hardware was named: nvidia-h200 is assumed"


@pytest.mark.parametrize(
    ("fields", "pointer", "said"),
    [
        ({"request": "instance normalization"}, "#/request", "no bundled problem is like it"),
        ({"request": "softmax in cuda on a cpu"}, "#/target/language", "on cpu use cpp or triton"),
        ({"request": "softmax", "target": {"hardware": "h100"}}, "#/target/hardware", "nvidia-h100"),
        ({"request": ""}, "#/request", "at least 1"),
        ({"request": "softmax", "problem": "softmax"}, "#/problem", "unknown field"),
        ({"request": "softmax", "budget": {"calls": 0}}, "#/budget/calls", "greater than"),
    ],
)
def test_what_cannot_be_proposed_is_refused_with_a_pointer(
    http: httpx2.Client, fields: dict[str, Any], pointer: str, said: str
) -> None:
    answer = http.post("/v1/requests", json=fields)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert said in error["detail"]


def test_plain_words_at_jobs_are_told_where_to_go(http: httpx2.Client) -> None:
    answer = http.post("/v1/jobs", json={"request": WORDS})
    assert answer.status_code == 422
    assert "POST /v1/requests" in answer.json()["detail"]


def test_with_a_writer_the_matchers_proposal_stands_until_it_has_written(http: httpx2.Client, bells: Bells) -> None:
    made = ask(http, "rmsnorm on cpu in c++", 202, writer="openai/gpt-5")
    assert (made["state"], made["model"], made["proposal"]["by"]) == ("queued", "openai/gpt-5", "matcher")
    assert bells.heard(1) == [(made["id"], "llm", "draft")]
    answer = http.post(made["links"]["confirm"])
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:kernelwright:error:not-proposed")
    assert http.get(made["links"]["self"], params={"wait": 0.6}).json()["state"] == "queued"
    nothing = ask(http, "instance normalization", 202, writer="openai/gpt-5")
    assert nothing["proposal"] is None


@pytest.mark.parametrize("path", ["/v1/requests/request_0", "/v1/requests/request_0/confirm"])
def test_an_unknown_request_is_a_404(http: httpx2.Client, path: str) -> None:
    answer = http.post(path) if path.endswith("confirm") else http.get(path)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:kernelwright:error:unknown-request")


@pytest.fixture
def token(sessions: sessionmaker[Session]) -> str:
    with sessions.begin() as session:
        return keys.create_key(session, "team", {"calls": 2})


def test_a_key_counts_what_it_submits_and_is_refused_when_its_cap_is_used_up(
    http: httpx2.Client, sessions: sessionmaker[Session], token: str
) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    made = http.post("/v1/requests", json={"request": "softmax", "models": ["a/b"]}, headers=headers).json()
    job = http.post(made["links"]["confirm"], headers=headers).json()
    assert job["key_id"].startswith("key_")
    with sessions.begin() as session:
        session.execute(text("UPDATE jobs SET llm_calls = 2"))
    for path, body in [
        ("/v1/jobs", made["proposal"]["job"]),
        ("/v1/requests", {"request": "softmax", "writer": "a/b"}),
    ]:
        answer = http.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:kernelwright:error:budget-used")
        assert "the cap on calls of the API key" in answer.json()["detail"]
        assert http.post(path, json=body).status_code in (200, 202), "without the key nothing is counted"
    without_models = made["proposal"]["job"] | {"models": []}
    assert http.post("/v1/jobs", json=without_models, headers=headers).status_code == 202
    assert http.post("/v1/requests", json={"request": "softmax"}, headers=headers).status_code == 200


@pytest.mark.parametrize("header", ["Bearer kw_live_nobody", "Basic abc", "Bearer"])
def test_a_key_that_nobody_gave_out_is_refused(http: httpx2.Client, header: str) -> None:
    answer = http.post("/v1/requests", json={"request": "softmax"}, headers={"Authorization": header})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
