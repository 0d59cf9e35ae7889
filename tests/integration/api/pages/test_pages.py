"""What pages do: paging, entity tags, refusals, and the forms."""

from __future__ import annotations

import html
import re

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from cli.client import Client, Job
from tests.integration.api.conftest import Bells
from tests.integration.api.history import History
from tests.integration.api.pages.conftest import FORM


def test_jobs_come_page_by_page(browser: httpx2.Client, client: Client, job: Job) -> None:
    made = [job["id"], *(client.submit({"problem": "softmax", "target": job["target"]})["id"] for _ in range(26))]
    first = browser.get("/jobs")
    following = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert following is not None
    second = browser.get(following[1].replace("&amp;", "&")).text
    seen = re.findall(r'<tr id="(\w+)"', first.text + second)
    assert seen == made[::-1]


def test_an_unchanged_page_is_not_sent_again(browser: httpx2.Client, history: History, job: Job) -> None:
    for path in ("/jobs", f"/jobs/{job['id']}"):
        tag = {"If-None-Match": browser.get(path).headers["etag"]}
        again = browser.get(path, headers=tag)
        assert (again.status_code, again.content) == (304, b"")
        history.start(job["id"]) if path == "/jobs" else history.propose(job["id"])
        assert browser.get(path, headers=tag).status_code == 200


def test_a_candidate_of_which_little_is_known_has_a_page(browser: httpx2.Client, history: History, job: Job) -> None:
    bare = {"checks": [{"name": "correct", "passed": True}], "workloads": [{"name": "small"}], "profile": {"text": "x"}}
    ids = [
        *history.propose(job["id"]),
        history.reject(job["id"], "no_code"),
        history.evaluate(job["id"], verdict="infra_error", timed=False),
        history.evaluate(job["id"], **bare),
    ]
    for path in (
        *(f"/candidates/{each}" for each in ids),
        f"/jobs/{job['id']}",
        f"/compare?left={ids[0]}&right={ids[3]}",
    ):
        assert browser.get(path).status_code == 200, path


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/nothing", 404, "nothing at this address"),
        ("/jobs/job_0", 404, "no job with this id"),
        ("/candidates/cand_0", 404, "no candidate with this id"),
        ("/jobs?state=sleeping", 422, "?state"),
        ("/compare?left=cand_0", 422, "?right"),
        ("/static/nothing.css", 404, "nothing at this address"),
    ],
)
def test_a_refusal_is_a_page_for_browsers_and_json_for_programs(
    browser: httpx2.Client, http: httpx2.Client, path: str, status: int, says: str
) -> None:
    page, plain = browser.get(path), http.get(path)
    assert (page.status_code, plain.status_code) == (status, status)
    assert page.headers["content-type"] == "text/html; charset=utf-8" and says in page.text
    assert "content-security-policy" in page.headers
    assert plain.headers["content-type"] == "application/problem+json" and says in plain.json()["detail"]


def test_the_rest_api_answers_browsers_too_in_json(browser: httpx2.Client) -> None:
    assert browser.get("/v1/jobs/job_0").headers["content-type"] == "application/problem+json"
    assert browser.post("/v1/jobs", data=FORM).status_code == 415


@pytest.mark.usefixtures("bells")
def test_a_form_makes_one_job_however_often_it_is_sent(browser: httpx2.Client, client: Client, bells: Bells) -> None:
    sent = [browser.post("/submit", data=FORM | {"key": "a1", "models": "openai/gpt-5, ask/tell"}) for _ in range(2)]
    assert [answer.status_code for answer in sent] == [303, 303]
    (job,) = client.get("/v1/jobs")["data"]
    assert {answer.headers["location"] for answer in sent} == {f"/jobs/{job['id']}"}
    assert (job["budget"]["candidates"], job["models"]) == (4, ["openai/gpt-5", "ask/tell"])
    assert bells.heard(1)
    cancelled = browser.post(f"/jobs/{job['id']}/cancel")
    assert (cancelled.status_code, client.get(f"/v1/jobs/{job['id']}")["state"]) == (303, "cancelling")


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"hardware": "toaster"}, "hardware", "is no hardware id"),
        ({"language": "cuda"}, "language", "cuda runs on"),
        ({"candidates": "many"}, "candidates", "valid integer"),
        ({"usd": "-1"}, "usd", "decimal string"),
        ({"bundled": "nothing"}, "bundled", "no bundled problem"),
        ({"kind": "own", "name": "mine", "source": "def ("}, "source", "line 1"),
        ({"kind": "own", "name": "a b", "source": "x"}, "name", "pattern"),
        ({"models": "x" * 300}, "models", "at most 200"),
    ],
)
def test_what_is_wrong_stands_beside_its_field(
    browser: httpx2.Client, client: Client, change: dict[str, str], field: str, says: str
) -> None:
    for action in ("submit", "check"):
        answer = browser.post("/submit", data=FORM | change | {"action": action})
        assert answer.status_code == 422
        (error,) = re.findall(rf'id="{field}-error">(.*?)</p>', answer.text, flags=re.DOTALL)
        assert says in error
    assert client.get("/v1/jobs")["data"] == []


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://elsewhere.example"},
     {"Origin": "null"}],
)  # fmt: skip
def test_a_form_from_another_site_is_refused(
    browser: httpx2.Client, client: Client, job: Job, headers: dict[str, str]
) -> None:
    for path in ("/submit", f"/jobs/{job['id']}/cancel"):
        answer = browser.post(path, data=FORM, headers=headers)
        assert answer.status_code == 403 and "another site" in answer.text
    assert [each["state"] for each in client.get("/v1/jobs")["data"]] == ["queued"]


def test_the_sums_of_spending_are_of_the_whole_period(
    browser: httpx2.Client, client: Client, job: Job, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        session.execute(
            text(
                "INSERT INTO jobs (id, problem_hash, problem_name, hardware, language, budget_candidates, cost_usd,"
                " gpu_s, llm_calls, llm_tokens, created_at)"
                " SELECT 'job_' || n, problem_hash, problem_name, hardware, language, 1, 0.5, 2, 3, 1000,"
                " now() - interval '1 hour' * n FROM jobs, generate_series(1, 60) AS n WHERE id = :id"
            ),
            {"id": job["id"]},
        )
    sums = {"day": "$11.50", "week": "$30.00", "all": "$30.00"}
    for period, usd in sums.items():
        assert f'<dd class="big">{usd}</dd>' in browser.get(f"/spending?period={period}").text
    week = browser.get("/spending?period=week").text
    assert "of 61 jobs of this period" in week and "60,000 tokens" in week
    following = re.search(r'rel="next" href="([^"]+)"', week)
    assert following is not None
    second = browser.get(html.unescape(following[1])).text
    assert "of 61 jobs of this period" in second and second.count('<tr><th scope="row">') == 11
    assert browser.get("/spending?period=century").status_code == 422
