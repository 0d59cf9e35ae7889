"""The pages of a service with a history, as a browser fetches them: what they say, and what stays text.

Nothing here changes a row, so the history is written once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy import Engine

from cli.embedded.postgres import EmbeddedPostgres
from db.session import make_engine, make_sessions
from tests.integration.api.conftest import DATABASE
from tests.integration.api.pages.conftest import ACCEPT, FORM
from tests.support.schema import empty
from tests.support.showcase import CHEEKY, Showcase, fill


@pytest.fixture(scope="module")
def showcase(postgres: EmbeddedPostgres, api_database: Engine) -> Iterator[Showcase]:
    url = postgres.url_for(DATABASE)
    empty(url)
    engine = make_engine(url, "tests")
    yield fill(make_sessions(engine))
    engine.dispose()


@pytest.fixture(scope="module")
def look(api_url: str, showcase: Showcase) -> Iterator[httpx2.Client]:
    """Asks for pages, as a browser does."""
    with httpx2.Client(base_url=api_url, timeout=30, headers=ACCEPT) as client:
        yield client


def test_every_page_answers_with_a_strict_policy(look: httpx2.Client, showcase: Showcase) -> None:
    paths = (
        "/jobs?state=succeeded",
        f"/jobs/{showcase.job_id}?verdict=ok&sort=-speedup",
        *(f"/candidates/{showcase.ids[ordinal]}" for ordinal in (1, 3, 10, 13, 17, 22)),
        f"/compare?left={showcase.ids[3]}&right={showcase.ids[22]}",
        f"/candidates/{showcase.ids[22]}/code/assembly",
        "/fleet",
        "/knowledge?problem=softmax&state=confirmed",
        "/uplift",
        "/spending",
        "/submit?bundled=layernorm",
        "/docs",
    )
    assets: set[str] = set()
    for path in paths:
        answer = look.get(path)
        assert answer.status_code == 200, path
        assert "script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not re.search(r"<script(?! src=\"/static/)|\son\w+=|\sstyle=|<style", answer.text), path
        assets |= set(re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text))
        assert "http://" not in re.sub(r"http://127\.0\.0\.1:8080/v1|xmlns=\S+", "", answer.text), path
    assert len(assets) == 4
    assert {look.head(asset).status_code for asset in assets} == {200}


def test_what_others_wrote_is_escaped(look: httpx2.Client, showcase: Showcase) -> None:
    for path in (f"/candidates/{showcase.cheeky_id}", f"/jobs/{showcase.running_id}"):
        text = look.get(path).text
        assert "<img" not in text and "<script>" not in text
        assert "&lt;script&gt;" in text
    source = look.get(f"/candidates/{showcase.cheeky_id}").text
    assert "\u202e" not in source and "⟨U+202E⟩" in source
    assert CHEEKY in look.get(f"/v1/candidates/{showcase.cheeky_id}/source").text


def test_the_reference_of_the_rest_api_has_every_operation_and_needs_no_network(look: httpx2.Client) -> None:
    page = look.get("/docs").text
    operations = [
        (method, path, operation)
        for path, methods in look.get("/openapi.json").json()["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) > 40
    for method, path, operation in operations:
        assert f"<code>{method.upper()} {path}</code> {operation['summary']}" in page.replace("&#39;", "'")
    assert "ordinal | -ordinal | -speedup, default ordinal" in page
    assert "triton | cuda" in page and "A key needs the scope <code>submit</code>" in page
    assert look.get("/redoc").status_code == 404


def test_a_page_says_what_the_api_says(look: httpx2.Client, showcase: Showcase) -> None:
    job = look.get(f"/jobs/{showcase.job_id}").text
    for said in ("2.31×", "target reached", "$0.57", "zeros would pass in 1 of 9 families", "#22", "Certificate"):
        assert said in job
    assert "hx-get" not in job
    assert 'hx-trigger="every 2s"' in look.get(f"/jobs/{showcase.running_id}").text
    only = look.get(f"/jobs/{showcase.job_id}?verdict=suspicious").text
    assert [each for each in showcase.ids[1:] if f'<tr id="{each}"' in only] == [showcase.ids[10]]
    fleet = look.get("/fleet").text
    assert "1755 MHz, memory 2619 MHz · 412.5 W · 61 °C" in fleet and "held down by power cap" in fleet
    assert "NVIDIA H100" in fleet and f"/jobs/{showcase.running_id}" in fleet
    assert "Accumulating in float32" in look.get("/knowledge?q=double").text


def test_a_check_shows_what_the_judge_found_and_stores_nothing(look: httpx2.Client, showcase: Showcase) -> None:
    before = len(look.get("/v1/jobs").json()["data"])
    answer = look.post("/submit", data=FORM | {"action": "check"})
    assert answer.status_code == 200
    assert "admitted with warnings" in answer.text and "finite for normal values" in answer.text
    assert len(look.get("/v1/jobs").json()["data"]) == before
