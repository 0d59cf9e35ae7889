"""A job run again: a new job that asks for the same."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.client import ApiError, Client
from db import jobs
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.history import History

OWN = "from torch import nn\n\n\nclass Model(nn.Module):\n    pass\n\n\ndef get_inputs():\n    return []\n"
SPEC: dict[str, Any] = {
    "problem": {"name": "mine", "source": OWN + "\n\ndef get_init_inputs():\n    return []\n"},
    "target": {"hardware": "nvidia-h100", "language": "triton"},
    "budget": {"candidates": 7, "usd": "1.25", "wall_s": 60.0, "gpu_s": 30.5, "calls": 40, "tokens": 10**9},
    "stop": {"target_speedup": 2.0, "stagnation": 3},
    "policy": {"search": "islands", "own_kernel_share": 0.5},
    "certify": False,
    "models": ["openai/gpt-5"],
    "diagnosis_model": "openai/gpt-5-mini",
    "labels": {"team": "x"},
    "priority": 5,
    "seed": 2**62,
}


def test_it_asks_for_the_same_and_names_its_parent(
    client: Client, http: httpx2.Client, history: History, bells: Bells, sessions: sessionmaker[Session]
) -> None:
    first: Any = client.submit(SPEC)
    history.finish(first["id"])
    assert len(bells.heard(2)) == 2
    bells.rung.clear()
    answer = http.post(first["links"]["rerun"])
    again = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, again["links"]["self"])
    assert (again["state"], again["parent_id"]) == ("queued", first["id"])
    same = {*SPEC, "admit"}
    assert {name: again[name] for name in same} == {name: first[name] for name in same}
    assert sorted(kind for _, _, kind in bells.heard(2)) == ["admit", "advance"]
    with sessions() as session:
        seeds = {jobs.fetch_job(session, each["id"]).judge_seed for each in (first, again)}
    assert len(seeds) == 2
    assert client.job(first["id"])["state"] == "failed"


def test_one_key_makes_one_rerun(client: Client) -> None:
    first, other = client.submit(BODY)["id"], client.submit(BODY)["id"]
    again = client.rerun(first, idempotency_key="k")
    assert client.rerun(first, idempotency_key="k")["id"] == again["id"]
    assert client.rerun(first)["id"] != again["id"]
    for send in (lambda: client.rerun(other, idempotency_key="k"), lambda: client.submit(BODY, idempotency_key="k")):
        with pytest.raises(ApiError) as error:
            send()
        assert error.value.type == "urn:kernelwright:error:idempotency-key-reused"


def test_a_job_that_never_was(client: Client) -> None:
    with pytest.raises(ApiError, match="GET /v1/jobs") as error:
        client.rerun("job_0")
    assert error.value.status == 404
