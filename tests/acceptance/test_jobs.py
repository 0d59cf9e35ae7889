"""Whole jobs through real processes: REST, queue, workers, judge, Postgres."""

from __future__ import annotations

import pytest

from cli.client import ApiError
from tests.acceptance.rig import MODEL, Deployment, body, until
from tests.support.fake_openai import Answer
from tests.support.ledger import PROBLEM

OWN = {"name": "rows", "source": PROBLEM}
NOISE = PROBLEM.replace("torch.softmax(x, -1)", "x + torch.randn_like(x)")
RIGHT = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
"""
WRONG = RIGHT.replace("-1", "0")
SLEEPY = "import time\n\ntime.sleep(600)\n" + RIGHT


def wrong(count: int, hang_s: float = 0) -> list[Answer]:
    """Wrong candidates, no two alike."""
    return [Answer(source=f"{WRONG}\nNUMBER = {number}\n", hang_s=hang_s) for number in range(count)]


def test_a_job_by_a_model_travels_from_a_rest_call_to_a_verified_kernel(deployment: Deployment) -> None:
    with deployment.model(Answer(source=WRONG), Answer(source=RIGHT)):
        # The right one is torch's own softmax: no kernel of its own, which this job allows.
        asked = body(2, models=[MODEL], problem=OWN, policy={"own_kernel_share": 0})
        job = deployment.client.submit(asked)
        ended = deployment.finished(job["id"])
    assert (ended["state"], ended["stop_reason"]) == ("succeeded", "budget_candidates"), deployment.story(job["id"])
    assert ended["policy"] == {"own_kernel_share": 0}
    verdicts = ended["progress"]["verdicts"]
    assert {verdict: count for verdict, count in verdicts.items() if count} == {"incorrect": 1, "ok": 1}
    assert deployment.client.best_source(job["id"]).strip() == RIGHT.strip()
    assert ended["cost"]["llm_usd"] == "0.40"
    deployment.assert_sound(job["id"])
    types = deployment.event_types(job["id"])
    assert types[:2] == ["job.created", "job.started"]
    assert types[-1] == "job.finished"
    assert types.count("candidate.evaluated") == 2
    assert types.count("job.improved") == 1
    assert deployment.rows("SELECT problem_name FROM kernels WHERE job_id = :id", id=job["id"]) == [("rows",)]


@pytest.mark.exhaustive
def test_a_job_without_a_model_is_searched_by_the_built_in_proposer(deployment: Deployment) -> None:
    job = deployment.client.submit(body(3, problem=OWN))
    ended = deployment.finished(job["id"])
    assert ended["state"] == "succeeded", deployment.story(job["id"])
    assert sum(ended["progress"]["candidates"].values()) >= 3
    best = deployment.client.best(job["id"])
    assert "class ModelNew" in str(best["source"])
    deployment.assert_sound(job["id"])


def test_a_problem_that_is_refused_ends_its_job_and_is_not_taken_again(deployment: Deployment) -> None:
    asked = body(2, problem={"name": "noise", "source": NOISE}) | {"admit": True}
    ended = deployment.finished(deployment.client.submit(asked)["id"])
    assert (ended["state"], ended["stop_reason"]) == ("failed", "error")
    assert "the problem cannot be judged" in str(ended["error"]) and "random" in str(ended["error"])
    deployment.assert_sound(ended["id"])
    with pytest.raises(ApiError, match="the reference is random") as error:
        deployment.client.submit(asked)
    assert error.value.status == 422


def test_a_flushed_redis_costs_only_time(deployment: Deployment) -> None:
    with deployment.model(*wrong(3, hang_s=1)):
        job = deployment.client.submit(body(3, models=[MODEL], problem=OWN))
        deployment.wait_for_event(job["id"], "candidate.created")
        with deployment.broker() as redis:
            redis.flushall()
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["incorrect"] == 3
    deployment.assert_sound(job["id"])


def test_a_submission_while_redis_is_away_is_taken_and_done_later(deployment: Deployment) -> None:
    deployment.valkey.stop()
    with deployment.model(*wrong(1)):
        job = deployment.client.submit(body(1, models=[MODEL], problem=OWN))
        assert job["state"] == "queued"
        deployment.valkey.start()
        ended = deployment.finished(job["id"])
    assert ended["progress"]["verdicts"]["incorrect"] == 1
    deployment.assert_sound(job["id"])


def test_a_cancel_ends_the_job_and_leaves_nothing_running(deployment: Deployment) -> None:
    with deployment.model(Answer(source=SLEEPY)):
        job = deployment.client.submit(body(1, models=[MODEL], problem=OWN))
        deployment.wait_for_event(job["id"], "candidate.evaluating")
        assert deployment.client.cancel(job["id"])["changed"]
        ended = deployment.finished(job["id"])
    assert (ended["state"], ended["stop_reason"]) == ("cancelled", "cancelled")
    until(lambda: all(not worker["current_work"] for worker in deployment.client.workers()), "the workers are idle")
    deployment.assert_sound(job["id"])


def test_a_wall_clock_that_runs_out_ends_the_job_though_nothing_happens(deployment: Deployment) -> None:
    with deployment.model(Answer(source=RIGHT, hang_s=60)):
        job = deployment.client.submit(
            body(1, models=[MODEL], problem=OWN) | {"budget": {"candidates": 1, "wall_s": 3}}
        )
        ended = deployment.finished(job["id"])
    assert (ended["state"], ended["stop_reason"]) == ("failed", "budget_wall")
