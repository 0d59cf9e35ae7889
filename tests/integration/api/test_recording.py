"""What is on record of a search, over REST; above all that the judge's seed is told to nobody while it matters."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from api.recording_schemas import Judging
from db import jobs
from db.models import Candidate, Job
from db.settings import Settings
from problems.catalog import bundled
from tests.integration.api.history import History
from tests.integration.worker.conftest import broker, configured
from tests.support.outside import Outside, file_answer
from worker.requests import judge_request

__all__ = ["broker", "configured"]


@pytest.fixture
def outside(http: httpx2.Client, configured: Settings, sessions: sessionmaker[Session]) -> Iterator[Outside]:
    outside = Outside(http, configured, sessions)
    yield outside
    outside.here.close()


def judging(http: httpx2.Client, job_id: str) -> Judging:
    return Judging.model_validate(http.get(f"/v1/jobs/{job_id}/judging").raise_for_status().json())


def test_the_judges_seed_is_told_when_the_job_has_ended_and_not_before(
    outside: Outside, http: httpx2.Client, history: History
) -> None:
    job_id, other = outside.submit(), outside.submit()
    asked = judging(http, job_id)
    assert asked.seed is None
    assert asked.problem.source == bundled()["softmax"].source
    with outside.sessions.begin() as session:
        candidate = Candidate(id="cand_1", source="class ModelNew: ...")
        used = judge_request(session, jobs.fetch_job(session, job_id), candidate).seed
    history.finish(job_id)
    history.finish(other)
    assert judging(http, job_id).seed == used
    assert judging(http, other).seed != used


def test_an_older_jobs_seed_is_still_the_one_that_was_used(
    outside: Outside, http: httpx2.Client, history: History
) -> None:
    """Such seeds were the first six bytes of the SHA-256 of id and seed."""
    job_id = outside.submit()
    with outside.sessions.begin() as session:
        session.execute(text("UPDATE jobs SET judge_seed = NULL"))
        job = session.get_one(Job, job_id)
        used = judge_request(session, job, Candidate(id="cand_1")).seed
    history.finish(job_id)
    assert judging(http, job_id).seed == used != 0


def test_decisions_and_proposals_come_page_by_page(outside: Outside, http: httpx2.Client) -> None:
    job_id = outside.submit()
    for question in outside.ask(job_id, limit=2):
        outside.tell(question, answer=file_answer(question["candidate_id"]))
    outside.advance()
    for what, count in (("decisions", 2), ("proposals", 3)):
        seen, path = [], f"/v1/jobs/{job_id}/{what}?limit=1"
        while path:
            page = http.get(path)
            seen += page.json()["data"]
            path = page.links.get("next", {}).get("url", "")
        assert seen == http.get(f"/v1/jobs/{job_id}/{what}").json()["data"]
        assert len(seen) == count
    assert http.get(f"/v1/jobs/{job_id}/proposals?cursor=x").status_code == 422


def test_a_proposal_shows_prompt_and_answer_and_no_token(outside: Outside, http: httpx2.Client) -> None:
    (question,) = outside.ask(outside.submit(), agent="claude")
    open_proposal = http.get(f"/v1/candidates/{question['candidate_id']}/proposal")
    assert (open_proposal.json()["answer"], open_proposal.json()["told_source"]) == (None, False)
    assert question["token"] not in open_proposal.text
    outside.tell(question, answer=file_answer("mine"))
    shown = http.get(f"/v1/candidates/{question['candidate_id']}/proposal").json()
    assert (shown["messages"], shown["answer"]) == (question["messages"], file_answer("mine"))
    assert (shown["agent"], shown["proposer"], shown["request"]["operator"]) == ("claude", "ask/tell", "seed")
    (seed,) = (
        each
        for each in http.get(f"/v1/jobs/{question['job_id']}/proposals").json()["data"]
        if each["proposer"] == "builtin"
    )
    assert (seed["messages"], seed["request"], seed["answer"]) == (None, None, None)


def test_the_tree_is_the_searchs(outside: Outside, http: httpx2.Client) -> None:
    job_id = outside.submit()
    nodes = http.get(f"/v1/jobs/{job_id}/tree").json()["nodes"]
    assert [(node["proposer"], node["state"]) for node in nodes] == [("builtin", "proposing")] + [
        ("ask/tell", "proposing")
    ] * 2


@pytest.mark.parametrize("what", ["decisions", "proposals", "tree", "judging"])
def test_what_is_not_there_is_unknown(http: httpx2.Client, what: str) -> None:
    assert http.get(f"/v1/jobs/job_0/{what}").json()["title"] == "Unknown job"
    assert http.get("/v1/candidates/cand_0/proposal").json()["title"] == "Unknown candidate"


def test_a_dry_run_warns_of_a_job_that_may_wait_for_ever(http: httpx2.Client) -> None:
    body = {"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}, "models": ["ask/tell"]}
    waits = "ask/tell is among the models: without budget.wall_s the job waits for agents as long as it takes"
    assert waits in http.post("/v1/jobs?dry_run=true", json=body).json()["warnings"]
    bounded = body | {"budget": {"wall_s": 60}}
    assert waits not in http.post("/v1/jobs?dry_run=true", json=bounded).json()["warnings"]
