"""Ask and tell over HTTP: who gets which question, what an answer becomes, and that each counts once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from redis import Redis
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates
from db.settings import Settings
from db.vocabulary import WorkKind
from search.prompts import build_prompt
from tests.integration.worker.conftest import broker, configured
from tests.support.ledger import event_types, states
from tests.support.outside import BODY, CANDIDATE, Outside, edit_answer, file_answer
from worker import client as doorbell
from worker.briefing import brief_of

__all__ = ["broker", "configured"]


@pytest.fixture
def outside(http: httpx2.Client, configured: Settings, sessions: sessionmaker[Session]) -> Iterator[Outside]:
    outside = Outside(http, configured, sessions)
    yield outside
    outside.here.close()


@pytest.fixture
def question(outside: Outside) -> dict[str, Any]:
    """The first question of a job that has one more."""
    (question,) = outside.ask(outside.submit(), agent="claude")
    return question


def title(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["title"]


def run_out(outside: Outside, question: dict[str, Any]) -> None:
    """Let the question's lease run out, and the reaper see it."""
    with outside.sessions.begin() as session:
        session.execute(
            text("UPDATE work SET lease_expires_at = now() - interval '1 s' WHERE candidate_id = :id"),
            {"id": question["candidate_id"]},
        )
    outside.reap()


def test_a_question_is_the_prompt_that_a_model_would_get(outside: Outside) -> None:
    job_id = outside.submit()
    first, second = outside.ask(job_id, limit=10, agent="claude", lease_s=60)
    assert (first["operator"], first["parents"], first["answer_format"]) == ("seed", [], "file")
    with outside.sessions.begin() as session:
        prompt = build_prompt(brief_of(session, first["candidate_id"]).request)
    assert first["messages"] == [dict(message) for message in prompt.messages]
    assert first["prompt_version"] == prompt.version
    assert first["messages"] != second["messages"]  # each seed has a direction of its own
    assert "candidate.asked" in event_types(outside.sessions, job_id)


def test_nothing_open_is_no_content_and_says_when_to_ask_again(outside: Outside) -> None:
    job_id = outside.submit()
    assert len(outside.ask(job_id, limit=10)) == 2  # a quarter of the budget
    response = outside.http.post(f"/v1/jobs/{job_id}/ask")
    assert (response.status_code, response.content, response.headers["retry-after"]) == (204, b"", "2")


def test_agents_who_ask_at_once_get_different_questions(outside: Outside) -> None:
    job_id = outside.submit(budget={"candidates": 24})
    with ThreadPoolExecutor(6) as agents:
        asked = list(agents.map(lambda _: outside.ask(job_id), range(8)))
    ids = [question["candidate_id"] for questions in asked for question in questions]
    assert len(ids) == len(set(ids)) == 6


def test_nobody_is_rung_for_a_question(outside: Outside, broker: Redis) -> None:
    outside.submit()
    outside.reap()
    assert broker.llen(f"{doorbell.KEY_PREFIX}ask") == 0
    assert broker.llen(f"{doorbell.KEY_PREFIX}cpu") == 1  # the built-in seed beside it


def test_an_answer_becomes_a_candidate_to_be_judged(outside: Outside, question: dict[str, Any]) -> None:
    told = outside.tell(question, answer=file_answer("first")).json()
    assert (told["accepted"], told["failure"]) == (True, None)
    candidate = outside.http.get(told["links"]["candidate"]).json()
    assert (candidate["state"], candidate["proposer"], candidate["model"]) == ("queued", "ask/tell", None)
    assert candidate["source"] == CANDIDATE.format(name="first")
    assert candidate["plan"] == "one pass per row"
    assert states(outside.sessions, WorkKind.EVALUATE) == ["queued"]


def test_the_same_tell_twice_is_the_same_result(outside: Outside, question: dict[str, Any]) -> None:
    said = {"answer": file_answer("first")}
    first, again = outside.tell(question, **said), outside.tell(question, **said, agent="its twin")
    assert first.json() == again.json()
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    assert states(outside.sessions, WorkKind.EVALUATE) == ["queued"]
    assert title(outside.tell(question, answer=file_answer("other"))) == (409, "Told before")


def test_two_tells_at_once_are_one_candidate(outside: Outside, question: dict[str, Any]) -> None:
    with ThreadPoolExecutor(4) as agents:
        told = list(agents.map(lambda n: outside.tell(question, source=CANDIDATE.format(name=n)), range(4)))
    assert sorted(response.status_code for response in told) == [200, 409, 409, 409]
    assert states(outside.sessions, WorkKind.EVALUATE) == ["queued"]


def test_a_question_whose_lease_ran_out_is_open_again_and_the_old_token_stale(
    outside: Outside, question: dict[str, Any]
) -> None:
    run_out(outside, question)
    assert title(outside.tell(question, answer=file_answer("late"))) == (409, "Stale token")
    again = outside.ask(question["job_id"], limit=1, agent="another")[0]
    assert (again["candidate_id"], again["messages"]) == (question["candidate_id"], question["messages"])
    assert again["token"] != question["token"]
    assert title(outside.tell(question, answer=file_answer("late"))) == (409, "Stale token")
    assert outside.tell(again, answer=file_answer("late")).json()["accepted"]


def test_a_question_is_never_given_up(outside: Outside, question: dict[str, Any]) -> None:
    """A worker's third lost lease is a dead proposal; an agent's is one more chance."""
    for _ in range(4):
        run_out(outside, question)
        (question,) = outside.ask(question["job_id"])
    assert outside.tell(question, answer=file_answer("at last")).json()["accepted"]


def test_a_lease_can_be_renewed_while_it_is_held(outside: Outside, question: dict[str, Any]) -> None:
    body = {"candidate_id": question["candidate_id"], "token": question["token"], "lease_s": 7200}
    renewed = outside.http.post(question["links"]["renew"], json=body)
    assert renewed.json()["lease_expires_at"] > question["lease_expires_at"]
    run_out(outside, question)
    assert title(outside.http.post(question["links"]["renew"], json=body)) == (409, "Stale token")


def test_an_answer_without_a_candidate_is_rejected_as_a_models_would_be(
    outside: Outside, question: dict[str, Any]
) -> None:
    told = outside.tell(question, answer="I would use wider loads.").json()
    assert (told["accepted"], told["failure"]) == (False, "no_code")
    assert outside.tell(question, answer="I would use wider loads.").json() == told
    assert outside.http.get(told["links"]["candidate"]).json()["state"] == "rejected"


def test_a_source_told_twice_by_two_is_a_duplicate(outside: Outside) -> None:
    first, second = outside.ask(outside.submit(), limit=2)
    outside.tell(first, source=CANDIDATE.format(name="x"), plan="mine")
    told = outside.tell(second, source="# again\n" + CANDIDATE.format(name="x")).json()
    assert (told["failure"], told["duplicate_of"]) == ("duplicate", first["candidate_id"])


def test_edits_are_applied_to_the_first_parent(outside: Outside, question: dict[str, Any]) -> None:
    outside.tell(question, answer=file_answer("slow"))
    with outside.sessions.begin() as session:
        evaluate(session, question["candidate_id"], verdict="incorrect")
    (other,) = outside.ask(question["job_id"])
    outside.tell(other, answer=file_answer("fast"))
    with outside.sessions.begin() as session:
        evaluate(session, other["candidate_id"])
    outside.advance()
    asked = outside.ask(question["job_id"], limit=10)
    edited = next(each for each in asked if each["operator"] in ("refine", "repair"))
    old = {question["candidate_id"]: "slow", other["candidate_id"]: "fast"}[edited["parents"][0]]
    assert edited["answer_format"] == "edits"
    told = outside.tell(edited, answer=edit_answer(old, "faster")).json()
    assert outside.http.get(told["links"]["candidate"]).json()["source"] == CANDIDATE.format(name="faster")


def evaluate(session: Session, candidate_id: str, verdict: str = "ok") -> None:
    from db import ledger  # noqa: PLC0415

    work_id = session.execute(
        text("SELECT id FROM work WHERE candidate_id = :id AND kind = 'evaluate'"), {"id": candidate_id}
    ).scalar_one()
    claim = ledger.claim(session, work_id, "worker_1")
    assert claim is not None
    speedup = 1.5 if verdict == "ok" else None
    candidates.store_evaluation(session, claim, {"verdict": verdict, "timed": True, "speedup": speedup})


def test_a_job_that_has_ended_asks_nothing_and_takes_nothing(outside: Outside) -> None:
    told, open_question = outside.ask(outside.submit(), limit=2)
    outside.tell(told, answer=file_answer("in time"))
    outside.http.post(f"/v1/jobs/{told['job_id']}/cancel")
    outside.advance()
    assert title(outside.http.post(f"/v1/jobs/{told['job_id']}/ask")) == (409, "Job ended")
    assert title(outside.tell(open_question, answer=file_answer("late"))) == (409, "Job ended")
    assert outside.tell(told, answer=file_answer("in time")).status_code == 200


def test_an_agent_with_nothing_more_to_propose_closes_the_open_questions(outside: Outside) -> None:
    job_id = outside.submit()
    (asked,) = outside.ask(job_id)  # the other one is open
    told = outside.tell(asked, exhausted=True)
    assert told.status_code == 200, told.text
    assert (told.json()["accepted"], told.json()["failure"]) == (False, "exhausted")
    found = outside.http.get(f"/v1/jobs/{job_id}/candidates").json()["data"]
    assert [each["failure"] for each in found if each["proposer"] == "ask/tell"] == ["exhausted", "exhausted"]
    outside.advance()
    assert outside.ask(job_id, limit=10) == []
    again = outside.tell(asked, exhausted=True)
    assert again.headers["idempotent-replayed"] == "true"
    assert title(outside.tell(asked, source="class ModelNew: pass"))[0] == 409


@pytest.mark.parametrize(
    ("said", "pointer"),
    [
        ({}, "#"),
        ({"answer": "a", "source": "class ModelNew: ..."}, "#"),
        ({"answer": "a", "plan": "p"}, "#"),
        ({"answer": "a", "exhausted": True}, "#"),
        ({"source": "def kernel(): ..."}, "#/source"),
        ({"answer": "a", "token": "mine"}, "#/token"),
        ({"answer": "nul \0"}, "#/answer"),
    ],
)
def test_a_tell_that_cannot_be_read_is_refused_and_changes_nothing(
    outside: Outside, question: dict[str, Any], said: dict[str, Any], pointer: str
) -> None:
    refused = outside.tell(question, **said)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    assert outside.tell(question, answer=file_answer("right")).json()["accepted"]


def test_what_nobody_asked_is_unknown(outside: Outside, question: dict[str, Any]) -> None:
    """Also a candidate of the same job that is the built-in proposer's, and one that is open and in nobody's hands."""
    listed = outside.http.get(f"/v1/jobs/{question['job_id']}/candidates").json()["data"]
    for each in listed:
        if each["id"] != question["candidate_id"]:
            told = outside.tell(question | {"candidate_id": each["id"]}, answer="a")
            assert title(told) == (404, "Unknown question")
    assert title(outside.tell(question | {"job_id": "job_0"}, answer="a")) == (404, "Unknown job")
    assert title(outside.http.post("/v1/jobs/job_0/ask")) == (404, "Unknown job")
    assert outside.http.post(f"/v1/jobs/{question['job_id']}/ask", json={"lease_s": 9}).status_code == 422


def test_a_job_without_outside_agents_says_so(outside: Outside) -> None:
    job_id = outside.http.post("/v1/jobs", json=BODY | {"models": []}).json()["id"]
    assert title(outside.http.post(f"/v1/jobs/{job_id}/ask")) == (409, "Not asking")
