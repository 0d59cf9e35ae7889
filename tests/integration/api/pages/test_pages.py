"""The pages as a browser would fetch them, from the real server: what they say, what they refuse, what stays text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.client import Client, Job
from tests.integration.api.conftest import Bells
from tests.integration.api.history import History
from tests.support.showcase import CHEEKY, Showcase, fill

FORM = {"bundled": "softmax", "hardware": "cpu", "language": "cpp", "candidates": "4"}


@pytest.fixture
def browser(url: str) -> Iterator[httpx2.Client]:
    """Asks for pages, as a browser does."""
    with httpx2.Client(base_url=url, timeout=30, headers={"Accept": "text/html,*/*;q=0.8"}) as client:
        yield client


@pytest.fixture
def showcase(url: str, sessions: sessionmaker[Session]) -> Showcase:
    return fill(sessions)


def test_every_page_answers_with_a_strict_policy(browser: httpx2.Client, showcase: Showcase) -> None:
    paths = (
        "/jobs?state=succeeded",
        f"/jobs/{showcase.job_id}?verdict=ok&sort=-speedup",
        *(f"/candidates/{each}" for each in showcase.ids[1:]),
        f"/compare?left={showcase.ids[3]}&right={showcase.ids[22]}",
        "/fleet",
        "/knowledge?problem=softmax&state=confirmed",
        "/uplift",
        "/spending",
        "/submit?bundled=layernorm",
    )
    for path in paths:
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert "script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not re.search(r"<script(?! src=\"/static/)|\son\w+=|\sstyle=|<style", answer.text), path
        for asset in set(re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)):
            assert browser.head(asset).status_code == 200
        assert "http://" not in re.sub(r"http://127\.0\.0\.1:8080/v1|xmlns=\S+", "", answer.text), path


def test_what_others_wrote_is_escaped(browser: httpx2.Client, showcase: Showcase) -> None:
    for path in (f"/candidates/{showcase.cheeky_id}", f"/jobs/{showcase.running_id}"):
        text = browser.get(path).text
        assert "<img" not in text and "<script>" not in text
        assert "&lt;script&gt;" in text
    source = browser.get(f"/candidates/{showcase.cheeky_id}").text
    assert "\u202e" not in source and "⟨U+202E⟩" in source
    assert CHEEKY in browser.get(f"/v1/candidates/{showcase.cheeky_id}/source").text


def test_a_page_says_what_the_api_says(browser: httpx2.Client, showcase: Showcase) -> None:
    job = browser.get(f"/jobs/{showcase.job_id}").text
    for said in ("2.31×", "target reached", "$0.57", "zeros would pass in 1 of 9 families", "#22", "Certificate"):
        assert said in job
    assert "hx-get" not in job
    assert 'hx-trigger="every 2s"' in browser.get(f"/jobs/{showcase.running_id}").text
    only = browser.get(f"/jobs/{showcase.job_id}?verdict=suspicious").text
    assert [each for each in showcase.ids[1:] if f'<tr id="{each}"' in only] == [showcase.ids[10]]
    fleet = browser.get("/fleet").text
    assert "NVIDIA H100" in fleet and f"/jobs/{showcase.running_id}" in fleet
    assert "Accumulating in float32" in browser.get("/knowledge?q=double").text


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
    assert bells.rung
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


def test_a_check_shows_what_the_judge_found_and_stores_nothing(
    browser: httpx2.Client, client: Client, showcase: Showcase
) -> None:
    before = len(client.get("/v1/jobs")["data"])
    answer = browser.post("/submit", data=FORM | {"action": "check"})
    assert answer.status_code == 200
    assert "admitted with warnings" in answer.text and "finite for normal values" in answer.text
    assert len(client.get("/v1/jobs")["data"]) == before


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
