"""POST /v1/jobs: what is stored, what is refused and how it is said."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from cli.client import ApiError, Client
from db.models import Event, Job, Problem, Work
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.history import History

OWN = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""


def count(sessions: sessionmaker[Session], table: type[Any]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def refused(client: Client, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as error:
        client.submit(body)
    return error.value


def test_a_job_is_stored_with_its_event_and_its_work_and_is_rung_for(
    http: httpx2.Client, sessions: sessionmaker[Session], bells: Bells
) -> None:
    answer = http.post("/v1/jobs", json=BODY)
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert (answer.headers["etag"], answer.headers["retry-after"]) == (f'"{job["version"]}.1"', "2")
    assert (job["state"], job["queue"], job["best"]) == ("queued", {"position": 1}, None)
    assert job["created_at"].endswith("Z")
    with sessions() as session:
        admit, advance = session.scalars(select(Work).where(Work.job_id == job["id"]).order_by(Work.id)).all()
        assert [event.type for event in session.scalars(select(Event).where(Event.job_id == job["id"]))] == [
            "job.created"
        ]
    assert bells.heard(2) == sorted([(admit.id, "cpu", "admit"), (advance.id, "control", "advance")])


def test_every_field_of_the_body_comes_back(client: Client) -> None:
    spec: dict[str, Any] = {
        "budget": {"candidates": 7, "usd": "1.25", "wall_s": 60.0, "gpu_s": 30.5, "calls": 40, "tokens": 10**9},
        "stop": {"target_speedup": 2.0, "stagnation": 3},
        "policy": {"search": "islands", "own_kernel_share": 0.5},
        "admit": False,
        "certify": False,
        "models": ["openai/gpt-5"],
        "diagnosis_model": "openai/gpt-5-mini",
        "labels": {"team": "x", "a/b": "ü"},
        "priority": 5,
        "seed": 2**62,
        "target": {"hardware": "nvidia-h100", "language": "triton"},
    }
    job: Any = client.submit(BODY | spec)
    assert {name: job[name] for name in spec} == spec
    assert client.job(job["id"]) == job


def test_an_own_source_is_stored_once_and_its_job_keeps_the_name(
    client: Client, sessions: sessionmaker[Session]
) -> None:
    first = client.submit(BODY | {"problem": {"name": "mine", "source": OWN}})
    second = client.submit(BODY | {"problem": {"name": "mine_again", "source": OWN}})
    assert (first["problem"]["name"], second["problem"]["name"]) == ("mine", "mine_again")
    assert first["problem"]["hash"] == second["problem"]["hash"]
    with sessions() as session:
        assert session.get_one(Problem, first["problem"]["hash"]).source == OWN


def test_twenty_requests_with_one_key_make_one_job(url: str, sessions: sessionmaker[Session]) -> None:
    def submit(_: int) -> httpx2.Response:
        return httpx2.post(f"{url}/v1/jobs", json=BODY, headers={"Idempotency-Key": "once"}, timeout=30)

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(submit, range(20)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.headers.get("idempotent-replayed", "") for answer in answers) == [""] + ["true"] * 19
    assert (count(sessions, Job), count(sessions, Work), count(sessions, Event)) == (1, 2, 1)


def test_a_key_stands_for_what_the_body_means(client: Client) -> None:
    first = client.submit(BODY, idempotency_key="k")
    reordered = {"target": {"language": "cpp", "hardware": "cpu"}, "problem": "softmax", "priority": 0}
    assert client.submit(reordered, idempotency_key="k")["id"] == first["id"]
    with pytest.raises(ApiError) as error:
        client.submit(BODY | {"seed": 1}, idempotency_key="k")
    assert (error.value.status, error.value.type) == (422, "urn:kernelwright:error:idempotency-key-reused")
    assert client.submit(BODY, idempotency_key="another")["id"] != first["id"]


def test_a_dry_run_says_what_would_be_and_stores_nothing(client: Client, sessions: sessionmaker[Session]) -> None:
    answer = client.dry_run(BODY | {"budget": {"usd": "2"}})
    unset = {"wall_s": None, "gpu_s": None, "calls": None, "tokens": None}
    assert answer["job"]["budget"] == {"candidates": 20, "usd": "2.00"} | unset
    assert answer["problem"]["name"] == "softmax"
    assert answer["job"]["problem"]["hash"] == answer["problem"]["hash"]
    assert answer["warnings"] == ["no worker serves the queue cpu now: the job would wait for one"]
    assert [count(sessions, table) for table in (Job, Problem, Work)] == [0, 0, 0]


def test_a_dry_run_refuses_what_a_submission_refuses(client: Client) -> None:
    with pytest.raises(ApiError) as error:
        client.dry_run(BODY | {"problem": "nope"})
    assert error.value.status == 422


def test_prefer_wait_answers_200_when_the_job_ends_in_time(http: httpx2.Client, history: History) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(http.post, "/v1/jobs", json=BODY, headers={"Prefer": "wait=30"})
        while not (jobs := http.get("/v1/jobs").json()["data"]):
            pass
        history.finish(jobs[0]["id"])
        answer = waiting.result()
    assert (answer.status_code, answer.json()["state"]) == (200, "failed")
    assert answer.headers["preference-applied"] == "wait=30"
    assert "retry-after" not in answer.headers


def test_prefer_wait_answers_202_when_the_time_is_over(http: httpx2.Client) -> None:
    answer = http.post("/v1/jobs", json=BODY, headers={"Prefer": "wait=0"})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")


def test_an_unknown_problem_lists_the_known_ones(client: Client) -> None:
    error = refused(client, BODY | {"problem": "sofmax"})
    assert error.errors[0]["pointer"] == "#/problem"
    assert "softmax" in error.detail and "attention_causal" in error.detail


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1\ndef f(:\n", "line 2: "),
        (OWN.replace("def get_init_inputs", "def other"), "get_init_inputs is missing"),
        (OWN + "SPEC = dict()\n", "line 16: "),
        (OWN + '\0"', "NUL"),
    ],
)
def test_a_source_that_does_not_parse_is_refused_with_its_line(client: Client, source: str, text: str) -> None:
    error = refused(client, BODY | {"problem": {"name": "mine", "source": source}})
    assert error.status == 422
    assert error.errors[0]["pointer"] == "#/problem/source"
    assert text in error.detail or "null bytes" in error.detail


def test_a_problem_without_a_workload_for_the_hardware_is_refused(client: Client) -> None:
    source = OWN + 'SPEC = {"workloads": [{"name": "big", "for": "gpu"}]}\n'
    error = refused(client, BODY | {"problem": {"name": "mine", "source": source}})
    assert error.errors[0]["pointer"] == "#/target/hardware"
    assert "no workload is for cpu" in error.detail


def test_all_fields_at_fault_are_named_at_once(client: Client) -> None:
    error = refused(client, {"problem": "softmax", "target": {"hardware": "cpu", "language": "cuda"}, "budgett": {}})
    found = {each["pointer"]: each["detail"] for each in error.errors}
    assert found["#/budgett"] == "unknown field"
    assert found["#/target/language"] == "cuda runs on an NVIDIA GPU; on cpu use cpp or triton"


def test_curl_d_is_told_what_to_type(http: httpx2.Client) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = http.post("/v1/jobs", content=json.dumps(BODY), headers=headers)
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "send JSON: curl --json @job.json, or add -H 'Content-Type: application/json'"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json", "Application/JSON"])
def test_any_json_content_type_will_do(http: httpx2.Client, kind: str) -> None:
    assert http.post("/v1/jobs", content=json.dumps(BODY), headers={"Content-Type": kind}).status_code == 202


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"problem":\n "softmax",}', "line 2, column 12"),
        (b"\xff\xfe{}", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_broken_json_is_a_400(http: httpx2.Client, content: bytes, text: str) -> None:
    answer = http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:kernelwright:error:broken-json")
    assert text in answer.json()["detail"]


def test_an_empty_body_is_named(http: httpx2.Client) -> None:
    answer = http.post("/v1/jobs")
    assert (answer.status_code, answer.json()["errors"]) == (422, [{"pointer": "#", "detail": "is missing"}])


def test_a_body_above_the_limit_is_a_413_whether_its_length_is_declared_or_not(http: httpx2.Client) -> None:
    def chunks() -> Any:
        for _ in range(300):
            yield b" " * 10_000

    headers = {"Content-Type": "application/json"}
    for answer in (
        http.post("/v1/jobs", content=b" " * 3_000_000, headers=headers),
        http.post("/v1/jobs", content=chunks(), headers=headers),
    ):
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:kernelwright:error:body-too-large")
        assert "2097152 bytes" in answer.json()["detail"]


def test_a_dry_run_estimates_what_models_would_cost_and_names_unknown_prices(client: Client) -> None:
    asked = {"budget": {"candidates": 20, "calls": 12}, "diagnosis_model": "openai/gpt-4o-mini"}
    known = client.dry_run(BODY | asked | {"models": ["openai/gpt-4o-mini"]})["estimate"]
    assert known["llm_calls"] == {"low": 12.0, "high": 12.0}
    assert known["prices"] == [
        {
            "model": "openai/gpt-4o-mini",
            "usd_per_mtok_in": "0.15",
            "usd_per_mtok_out": "0.60",
            "source": "litellm",
        }
    ]
    assert known["usd"] is not None and 0 < float(known["usd"]["low"]) < float(known["usd"]["high"])
    unknown = client.dry_run(BODY | asked | {"models": ["openai/unheard-of"]})["estimate"]
    assert (unknown["usd"], unknown["unknown_prices"]) == (None, ["openai/unheard-of"])
    free = client.dry_run(BODY)["estimate"]
    assert (free["usd"], free["llm_calls"]["high"]) == ({"low": "0.00", "high": "0.00"}, 0.0)
