"""Whole jobs through real processes: REST, queue, workers, judge, Postgres."""

from __future__ import annotations

from decimal import Decimal

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.endurance.checks import facts_of
from cli.client import ApiError
from cli.replay import fetch
from search.replay import replayed
from tests.acceptance.rig import MODEL, Deployment, body, until
from tests.redteam.kernels import candidate
from tests.support.fake_openai import Answer
from tests.support.ledger import PROBLEM
from tests.support.promql import unmet, uses
from worker.metrics import REGISTRY

OWN = {"name": "rows", "source": PROBLEM}
NOISE = PROBLEM.replace("torch.softmax(x, -1)", "x + torch.randn_like(x)")
RIGHT = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
"""
WRONG = RIGHT.replace("-1", "0")
KERNEL = candidate("softmax", "return self.real(x)")
CHEAT = RIGHT.replace("return", "# The judge knows nothing of kernels.\n        return")
EDIT = "Faster.\n<<<<<<< SEARCH\n        a line that no file has\n=======\n        another\n>>>>>>> REPLACE\n"
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
    assert ended["policy"] == {"search": "default", "own_kernel_share": 0}
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
    again = replayed(fetch(deployment.client, job["id"]))
    assert (again.differences, again.expansions, again.answers) == ([], 2, 2)
    assert_traced(deployment, job["id"])


def assert_traced(deployment: Deployment, job_id: str) -> None:
    """From the request to the phases of a judgement it is one trace; and log lines lead to it."""
    collector = deployment.collector
    units = deployment.rows("SELECT kind, id FROM work WHERE job_id = :id AND state = 'done'", id=job_id)
    works = {(kind, work_id) for kind, work_id in units}
    collector.wait_for(lambda: len([s for s in collector.of_job(job_id) if s.kind == "consumer"]) >= len(works))
    spans = collector.of_job(job_id)
    (submission,) = [span for span in spans if span.name == "POST /v1/jobs"]
    assert (submission.service, submission.parent_id) == ("kernelwright-api", "")
    traced = [span for span in spans if span.kind == "consumer"]
    assert {(span.name, span.attributes["kernelwright.work.id"]) for span in traced} == works
    assert all((span.service, span.parent_id) == ("kernelwright-worker", submission.span_id) for span in traced)
    right = next(span for span in traced if span.attributes.get("kernelwright.verdict") == "ok")
    assert right.attributes["kernelwright.speedup"] > 0
    phases = {span.name for span in spans if span.parent_id == right.span_id}
    assert phases >= {"build", "runner", "load", "verify", "time", "profile"}
    asked = [span for span in spans if span.name == f"chat {MODEL}"]
    proposed = {span.span_id for span in traced if span.name == "propose"}
    assert len(asked) == 2 and {span.parent_id for span in asked} == proposed
    lines = [line for found in deployment.log_lines("candidate.evaluated").values() for line in found]
    assert right.span_id in {line["span_id"] for line in lines if line.get("trace_id") == right.trace_id}
    assert not any(text in body for body in collector.bodies for text in (b"softmax(x", b"class Model", b"sk-none"))


def test_whatever_a_model_answers_nothing_is_lost_and_every_answer_is_paid_for_once(deployment: Deployment) -> None:
    without_answer = [
        Answer(status=429, headers={"Retry-After": "1"}, error="slow down"),
        Answer(status=500),
        Answer(hang_s=60),
    ]
    answered = [
        Answer(source=KERNEL),
        Answer(content="One could keep each row in registers."),
        Answer(content=f"To build:\n```sh\ng++ -O3 rows.cpp\n```\nThe file:\n```python\n{WRONG}```\nIt is fast.\n"),
        Answer(content=f"Fast.\n```python\n{RIGHT[:60]}", finish_reason="length"),
        Answer(refusal="I can't help with that."),
        Answer(source=CHEAT),
    ]
    # The edit is for the first who is asked for one; the others come to whoever asks. When all are used up, more prose.
    failed_edit = Answer(content=EDIT, match="Change the candidate by edits")
    script = [failed_edit, *without_answer, *answered, Answer(content="Nothing more.", repeat=True)]
    with deployment.model(*script, timeout_s=8) as provider:
        job = deployment.client.submit(body(len(answered) + 4, models=[MODEL], problem=OWN))
        ended = deployment.finished(job["id"])
    assert (ended["state"], ended["stop_reason"]) == ("succeeded", "budget_candidates"), deployment.story(job["id"])
    made = dict(
        deployment.rows(
            "SELECT coalesce(failure, verdict), count(*)::int FROM candidates"
            " LEFT JOIN evaluations ON candidate_id = candidates.id"
            " WHERE candidates.job_id = :id AND proposer = 'llm' GROUP BY 1",
            id=job["id"],
        )
    )
    without_code = made.pop("no_code")
    assert made == dict.fromkeys(("ok", "incorrect", "truncated", "refused", "suspicious", "diff_failed"), 1)
    asked = len(made) + without_code
    assert len(provider.requests) == asked + len(without_answer)
    calls = deployment.rows(
        "SELECT count(*), sum(attempts), sum(cost_usd), count(error) FROM llm_calls"
        " WHERE job_id = :id AND state = 'finished'",
        id=job["id"],
    )
    assert calls == [(asked, len(provider.requests), asked * Decimal("0.2"), 0)]
    assert Decimal(ended["cost"]["llm_usd"]) == asked * Decimal("0.2")
    deployment.assert_sound(job["id"])
    assert ended["best"] is not None
    assert deployment.client.assembly(ended["best"]["candidate_id"]).startswith("# cpp source 1 of 1, flags:")
    assert_counted(deployment, asked)


def assert_counted(deployment: Deployment, asked: int) -> None:
    """The workers, each a pool of processes, counted it all; and what deploy/ asks of them is there."""
    text = httpx2.get(deployment.metrics_url).text
    found = {  # by the values of the labels, which the exporter writes in the order of their names
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["kernelwright_llm_calls_total", MODEL, "ok"] >= asked
    assert found["kernelwright_llm_usd_total", MODEL] > asked * 0.2 - 0.01
    judged = deployment.rows("SELECT verdict, count(*) FROM evaluations GROUP BY 1")
    assert judged
    for verdict, count in judged:
        assert found["kernelwright_candidates_evaluated_total", "cpu", "cpp", verdict] >= count
    names = {f"{family.name}{suffix}" for family in REGISTRY.collect() for suffix in ("_total", "_bucket", "_count")}
    of_workers = [use for use in uses() if use.metric in names]
    assert len(of_workers) > 15
    assert unmet(of_workers, text) == []


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


@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # 230 s on two slow cores beside other tests
def test_a_job_of_twenty_candidates_outlives_two_deaths_of_every_process(deployment: Deployment) -> None:
    """At full length, and with kills at random moments: `python -m benchmarks.endurance`."""
    broken = [Answer(source=f"{RIGHT.replace('return', 'retrun')}\nNUMBER = {n}\n", hang_s=0.3) for n in range(30)]
    with deployment.model(*broken[:3], *wrong(2), Answer(source=KERNEL), *broken[3:]):
        job_id = deployment.client.submit(body(20, models=[MODEL], problem=OWN))["id"]
        for least in (4, 12):
            until(lambda least=least: _judged(deployment, job_id) >= least, f"{least} are judged")  # type: ignore[misc]
            deployment.kill_everything()
            deployment.restart_everything()
        ended = deployment.finished(job_id)
    assert (ended["state"], ended["stop_reason"]) == ("succeeded", "budget_candidates"), deployment.story(job_id)
    deployment.assert_sound(job_id)
    with deployment.database.connect() as connection:
        facts = facts_of(connection, job_id)
    assert facts["wrong"] == [], deployment.story(job_id)
    assert facts["evaluations"] == 20


def _judged(deployment: Deployment, job_id: str) -> int:
    ((count,),) = deployment.rows("SELECT count(*) FROM evaluations WHERE job_id = :id", id=job_id)
    return int(count)


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


def test_a_collector_that_is_away_costs_a_line_and_nothing_else(deployment: Deployment) -> None:
    def said(event: str) -> dict[str, int]:
        return {name: len(lines) for name, lines in deployment.log_lines(event).items()}

    assert said("traces.not_sent") == {}
    with deployment.collector.away(), deployment.model(*wrong(1)):
        job = deployment.client.submit(body(1, models=[MODEL], problem=OWN))
        ended = deployment.finished(job["id"])
        assert ended["progress"]["verdicts"]["incorrect"] == 1
        deployment.assert_sound(job["id"])
        everybody = {"api": 1, "worker-control": 1, "worker-llm": 1, "worker-cpu": 1}
        until(lambda: said("traces.not_sent") == everybody, "each process has said so", patience_s=30)

    def sent_again() -> bool:
        deployment.client.jobs(limit=1)  # a span to send: what failed is kept for ten seconds only
        return "api" in said("traces.sent_again")

    until(sent_again, "traces are sent again", patience_s=60)
    assert said("traces.not_sent") == everybody
