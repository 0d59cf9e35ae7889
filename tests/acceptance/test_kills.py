"""Kill -9 of each kind of worker in the middle of its work: after a restart the job ends, and nothing counts twice."""

from __future__ import annotations

import pytest

from tests.acceptance.rig import MODEL, Deployment, body, until
from tests.support.fake_openai import Answer
from tests.support.ledger import PROBLEM

OWN = {"name": "rows", "source": PROBLEM}
SLOW = """
import time

import torch

time.sleep(2)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 0)
"""


def answers(count: int, **fields: float) -> list[Answer]:
    """Wrong candidates, no two alike, that take the judge some seconds."""
    return [Answer(source=f"{SLOW}\nNUMBER = {number}\n", hang_s=fields.get("hang_s", 0.0)) for number in range(count)]


def test_a_killed_evaluator(deployment: Deployment) -> None:
    with deployment.model(*answers(2)):
        job = deployment.client.submit(body(2, models=[MODEL], problem=OWN))
        deployment.wait_for_event(job["id"], "candidate.evaluating")
        deployment.kill("worker-cpu")
        deployment.restart("worker-cpu")
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["incorrect"] == 2
    deployment.assert_sound(job["id"])


def test_a_killed_pool_process_of_the_evaluator(deployment: Deployment) -> None:
    with deployment.model(*answers(2)):
        job = deployment.client.submit(body(2, models=[MODEL], problem=OWN))
        deployment.wait_for_event(job["id"], "candidate.evaluating")
        deployment.kill_child("worker-cpu")
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["incorrect"] == 2
    assert "work.requeued" in deployment.event_types(job["id"])
    deployment.assert_sound(job["id"])


@pytest.mark.parametrize("kind", ["admit", "certify"])
def test_a_killed_pool_process_that_examines(deployment: Deployment, kind: str) -> None:
    """The first attempt dies with its process; the reaper has another made of the problem, or of the champion."""
    source = PROBLEM.replace("torch.softmax(x, -1)", "torch.relu(x) * 3.0").replace("(8, 8)", "(128, 128)")
    asked = body(1, problem={"name": f"killed_{kind}", "source": f"{source}\n# {kind}\n"}) | {kind: True}
    job = deployment.client.submit(asked)
    until(lambda: _running(deployment, job["id"], kind), f"the {kind} is under way")
    deployment.kill_child("worker-cpu")
    ended = deployment.finished(job["id"], patience_s=280)
    assert "work.requeued" in deployment.event_types(job["id"])
    story = deployment.story(job["id"])
    if kind == "admit":
        assert ended["admission"] is not None and ended["state"] == "succeeded", story
    else:
        assert deployment.rows("SELECT count(*) FROM certificates WHERE job_id = :id", id=job["id"]) == [(1,)], story
    attempts = deployment.rows("SELECT state, attempt FROM work WHERE job_id = :id AND kind = :kind", id=job["id"],
                               kind=kind)  # fmt: skip
    assert attempts == [("done", 2)], story
    deployment.assert_sound(job["id"])


def _running(deployment: Deployment, job_id: str, kind: str) -> bool:
    query = "SELECT 1 FROM work WHERE job_id = :id AND kind = :kind AND state = 'running'"
    return bool(deployment.rows(query, id=job_id, kind=kind))


def test_a_killed_caller_of_models(deployment: Deployment) -> None:
    with deployment.model(*answers(4, hang_s=2)) as provider:
        job = deployment.client.submit(body(2, models=[MODEL], problem=OWN))
        until(lambda: len(provider.requests) == 2, "both calls are under way")
        deployment.kill("worker-llm")
        deployment.restart("worker-llm")
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["incorrect"] == 2
    calls = deployment.rows("SELECT state FROM llm_calls WHERE job_id = :id ORDER BY started_at", id=job["id"])
    assert calls == [("started",), ("started",), ("finished",), ("finished",)]
    deployment.assert_sound(job["id"])


@pytest.mark.parametrize("moment", ["candidate.created", "candidate.proposed", "candidate.evaluated"])
def test_a_killed_control_worker(deployment: Deployment, moment: str) -> None:
    with deployment.model(*answers(3)):
        job = deployment.client.submit(body(3, models=[MODEL], problem=OWN))
        deployment.wait_for_event(job["id"], moment)
        deployment.kill("worker-control")
        deployment.restart("worker-control")
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["incorrect"] == 3
    deployment.assert_sound(job["id"])


def test_a_killed_api(deployment: Deployment) -> None:
    with deployment.model(*answers(1)):
        job = deployment.client.submit(body(1, models=[MODEL], problem=OWN))
        deployment.kill("api")
        deployment.restart("api")
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["incorrect"] == 1
    deployment.assert_sound(job["id"])


def test_a_candidate_that_kills_whoever_evaluates_it_is_given_up_and_the_job_goes_on(deployment: Deployment) -> None:
    """The judge contains what a candidate does; here the test plays the candidate that gets past it."""
    with deployment.model(*answers(2)):
        job = deployment.client.submit(body(2, models=[MODEL], problem=OWN))
        for attempt in range(1, 4):
            until(lambda attempt=attempt: _first_attempt(deployment, job["id"]) == attempt, f"attempt {attempt}")  # type: ignore[misc]
            deployment.kill_child("worker-cpu")
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["infra_error"] == 1
    assert ended["progress"]["verdicts"]["incorrect"] == 1
    assert "work.dead" in deployment.event_types(job["id"])
    deployment.assert_sound(job["id"])


def _first_attempt(deployment: Deployment, job_id: str) -> int:
    """Which attempt at the job's first evaluation is running; 0 when none is."""
    rows = deployment.rows(
        "SELECT attempt, state FROM work WHERE job_id = :id AND kind = 'evaluate' ORDER BY id LIMIT 1", id=job_id
    )
    return rows[0][0] if rows and rows[0][1] == "running" else 0
