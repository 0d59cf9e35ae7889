"""GET /v1/jobs/{id}/certificate: the document, its page, and what is said while there is none."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.client import ApiError, Client, Job
from db import certificates, jobs
from db.finishing import end_search
from db.vocabulary import StopReason, WorkKind
from tests.integration.api.conftest import BODY
from tests.integration.api.history import History
from tests.support.ledger import claim_kind
from worker.judge.certificate.document import document_hash, is_intact

PAGE = "<!doctype html><title>softmax on cpu: kernel certificate — é</title>"


def certify(sessions: sessionmaker[Session], job_id: str, **found: Any) -> dict[str, Any]:
    """The job's best, from a queued `certify` to its stored document, which is returned."""
    body = {"certified": True, "verdict": "ok", "reason": "", "figures": [1e22, -0.0], "text": "\ud800"} | found
    document = body | {"sha256": document_hash(body)}
    with sessions.begin() as session:
        certificates.enqueue_certify(session, jobs.fetch_job(session, job_id))
    claim = claim_kind(sessions, WorkKind.CERTIFY)
    with sessions.begin() as session:
        certificates.store_certificate(session, claim, document, PAGE)
    return document


def why_none(client: Client, job_id: str) -> str:
    with pytest.raises(ApiError) as error:
        client.certificate(job_id)
    assert (error.value.status, error.value.type) == (404, "urn:kernelwright:error:no-certificate")
    return error.value.detail


def test_the_certificate_of_the_best_is_the_judges_document(
    client: Client, history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    history.evaluate(job["id"], speedup=2.0)
    document = certify(sessions, job["id"])
    found = client.certificate(job["id"])
    assert found == document and is_intact(found)
    best = client.job(job["id"])["best"]
    assert best is not None and best["certified"] is True


def test_a_browser_gets_a_page_that_may_run_nothing(
    http: httpx2.Client, client: Client, history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    history.evaluate(job["id"], speedup=2.0)
    certify(sessions, job["id"])
    answer = http.get(job["links"]["certificate"], headers={"Accept": "text/html,application/json;q=0.9,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text == PAGE == client.certificate_page(job["id"])
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["vary"] == "Accept"


def test_of_a_job_whose_finalists_were_refused_it_is_the_last_refusal(
    client: Client, history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    history.evaluate(job["id"], speedup=2.0)
    refused = certify(sessions, job["id"], certified=False, verdict="incorrect", reason="stale output")
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
