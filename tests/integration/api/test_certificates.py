"""GET /v1/jobs/{id}/certificate: the document, its page, and what is said while there is none."""

from __future__ import annotations

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.client import ApiError, Client, Job
from db import jobs
from db.finishing import end_search
from db.vocabulary import StopReason
from tests.integration.api.conftest import BODY
from tests.integration.api.history import PAGE, History
from worker.judge.certificate.document import is_intact

ODD = {"figures": [1e22, -0.0], "text": "\ud800"}
"""What a detour through JSONB or UTF-8 would change."""


def why_none(client: Client, job_id: str) -> str:
    with pytest.raises(ApiError) as error:
        client.certificate(job_id)
    assert (error.value.status, error.value.type) == (404, "urn:kernelwright:error:no-certificate")
    return error.value.detail


def test_the_certificate_of_the_best_is_the_judges_document(client: Client, history: History, job: Job) -> None:
    history.evaluate(job["id"], speedup=2.0)
    document = history.certify(job["id"], timing={"speedup": 1.25, "ci95": [1.0, 1.5]}, **ODD)
    found = client.certificate(job["id"])
    assert found == document and is_intact(found)
    best = client.job(job["id"])["best"]
    assert best is not None and best["certified"] is True
    assert (best["speedup"], best["ci95"]) == (1.25, [1.0, 1.5])  # measured again, in fresh processes
    history.finish(job["id"])
    ended = client.events(job["id"])["data"][-1]
    assert (ended["type"], ended["data"]["best_speedup"]) == ("job.finished", 1.25)
    entry = client.leaderboard("softmax")["boards"][0]["entries"][0]
    assert (entry["certified"], entry["speedup"]) == (True, 1.25)


def test_a_browser_gets_a_page_that_may_run_nothing(
    http: httpx2.Client, client: Client, history: History, job: Job
) -> None:
    history.evaluate(job["id"], speedup=2.0)
    history.certify(job["id"])
    answer = http.get(job["links"]["certificate"], headers={"Accept": "text/html,application/json;q=0.9,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text == PAGE == client.certificate_page(job["id"])
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["vary"] == "Accept"


def test_of_a_job_whose_finalists_were_refused_the_last_refusal(client: Client, history: History, job: Job) -> None:
    history.evaluate(job["id"], speedup=2.0)
    refused = history.certify(job["id"], certified=False, verdict="incorrect", reason="stale output")
    assert "is certified when the search has ended" in why_none(client, job["id"])
    history.finish(job["id"])
    assert client.certificate(job["id"]) == refused
    assert client.job(job["id"])["state"] == "failed"


def test_the_404_says_when_there_will_be_one(
    client: Client, history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    assert "it is queued now" in why_none(client, job["id"])
    history.start(job["id"])
    history.evaluate(job["id"], speedup=2.0)
    assert "it is running now" in why_none(client, job["id"])
    with sessions.begin() as session:
        end_search(session, jobs.fetch_job(session, job["id"]), StopReason.STAGNATED)
    assert "The search has ended (stagnated) and its champion is being certified" in why_none(client, job["id"])
    now = client.job(job["id"])
    assert (now["state"], now["stop_reason"]) == ("running", "stagnated")
    history.finish(job["id"], StopReason.STAGNATED)
    assert "There will be none: this job ended (stagnated) and was not certified" in why_none(client, job["id"])


def test_the_404_says_when_there_will_never_be_one(client: Client, history: History, job: Job) -> None:
    history.finish(job["id"])
    assert "found no verified kernel" in why_none(client, job["id"])
    unasked = client.submit(BODY | {"certify": False})
    assert "certify=false" in why_none(client, unasked["id"])
