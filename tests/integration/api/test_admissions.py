"""What clients see of an examination, and how a refused problem is refused."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.client import ApiError, Client
from db import admitting
from db.vocabulary import WorkKind
from tests.integration.api.conftest import BODY
from tests.support.ledger import claim_kind, states

DOMAINS = {"x": {"kind": "real", "bound": None, "why": "finite for normal values"}}
WARNED = {
    "verdict": "admitted with warnings",
    "reason": "",
    "warnings": ["zeros would pass in 1 of 9 families (equal)"],
    "notes": ["identity parameters: the judge redraws them"],
    "domains": DOMAINS,
    "families": [{"name": "normal"}],
}
REFUSED = {"verdict": "refused", "reason": "0 of 9 input families tell a right answer from a wrong one"}
SENTENCE = "the problem cannot be judged: 0 of 9 input families tell a right answer from a wrong one"


def examine(sessions: sessionmaker[Session], report: dict[str, Any]) -> None:
    claim = claim_kind(sessions, WorkKind.ADMIT)
    with sessions.begin() as session:
        admitting.store_admission(session, claim, "judge", report)


def test_a_job_shows_what_was_found_about_its_problem(client: Client, sessions: sessionmaker[Session]) -> None:
    job = client.submit(BODY)
    assert job["admission"] is None
    examine(sessions, WARNED)
    now = client.job(job["id"])
    assert now["version"] > job["version"] and now["admission"] is not None
    assert now["admission"].pop("examined_at").endswith("Z")  # type: ignore[misc]
    assert now["admission"] == {name: WARNED[name] for name in ("verdict", "warnings", "notes", "domains")} | {
        "reason": None
    }
    (event,) = [each for each in client.events(job["id"])["data"] if each["type"] == "problem.admitted"]
    assert (event["data"]["warnings"], event["data"]["reused"]) == (WARNED["warnings"], False)


def test_a_second_job_and_a_dry_run_show_it_at_once(client: Client, sessions: sessionmaker[Session]) -> None:
    assert client.dry_run(BODY)["admission"] is None
    client.submit(BODY)
    examine(sessions, WARNED)
    second = client.submit(BODY)
    assert second["admission"] is not None and second["admission"]["domains"] == DOMAINS
    assert client.dry_run(BODY)["admission"] == second["admission"]
    assert states(sessions, WorkKind.ADMIT) == ["done"]


def test_who_asks_for_no_examination_gets_none(client: Client, sessions: sessionmaker[Session]) -> None:
    assert client.submit(BODY | {"admit": False})["admit"] is False
    assert states(sessions, WorkKind.ADMIT) == []


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_a_problem_that_was_refused_is_a_422_at_once(
    http: httpx2.Client, client: Client, sessions: sessionmaker[Session], query: str
) -> None:
    job = client.submit(BODY)
    examine(sessions, REFUSED)
    ended = client.job(job["id"])
    assert (ended["state"], ended["stop_reason"], ended["error"]) == ("failed", "error", SENTENCE)
    answer = http.post(f"/v1/jobs{query}", json=BODY)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["type"] == "urn:kernelwright:error:problem-refused"
    assert answer.json()["detail"] == SENTENCE
    assert answer.json()["errors"] == [{"pointer": "#/problem", "detail": SENTENCE}]
    assert len(client.jobs()["data"]) == 1


def test_a_refusal_on_one_hardware_says_nothing_of_another(client: Client, sessions: sessionmaker[Session]) -> None:
    client.submit(BODY)
    examine(sessions, REFUSED)
    client.submit(BODY | {"target": {"hardware": "nvidia-h100", "language": "triton"}})
    with pytest.raises(ApiError, match="cannot be judged"):
        client.submit(BODY)


def test_a_replayed_submission_answers_the_job_that_was_refused(
    client: Client, sessions: sessionmaker[Session]
) -> None:
    job = client.submit(BODY, idempotency_key="k")
    examine(sessions, REFUSED)
    assert client.submit(BODY, idempotency_key="k")["id"] == job["id"]
