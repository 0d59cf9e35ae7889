"""Every page in a real browser: nothing that axe calls serious, no complaint on the console, no sideways scrolling."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from db import candidates, jobs
from db.candidates import NewCandidate
from db.session import make_engine, make_sessions
from db.vocabulary import QUEUE_CPU
from tests.browser.pages import Scheme, Size, Visitor
from tests.support.showcase import Showcase

pytestmark = pytest.mark.browser

PAGES: dict[str, Callable[[Showcase], str]] = {
    "jobs": lambda _: "/jobs",
    "job": lambda shown: f"/jobs/{shown.job_id}",
    "job-running": lambda shown: f"/jobs/{shown.running_id}",
    "candidate": lambda shown: f"/candidates/{shown.ids[18]}",
    "candidate-refused": lambda shown: f"/candidates/{shown.ids[6]}",
    "code": lambda shown: f"/candidates/{shown.ids[22]}/code/assembly",
    "reference": lambda _: "/docs",
    "compare": lambda shown: f"/compare?left={shown.ids[14]}&right={shown.ids[18]}",
    "fleet": lambda _: "/fleet",
    "knowledge": lambda _: "/knowledge?q=double+accumulate&hardware=cpu&language=cpp",
    "uplift": lambda _: "/uplift",
    "spending": lambda _: "/spending",
    "submit": lambda _: "/submit",
    "missing": lambda _: "/jobs/job_0",
}


@pytest.mark.parametrize(("size", "scheme"), [("desk", "light"), ("phone", "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits(
    visitor: Visitor, showcase: Showcase, name: str, size: Size, scheme: Scheme
) -> None:
    with visitor.at(PAGES[name](showcase), size, scheme) as page:
        assert visitor.findings(page) == []
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        # The page of a missing job is a 404, and the browser says so.
        assert [each for each in visitor.complaints if "404" not in each] == []
        visitor.picture(page, f"{name}-{size}")


def test_generated_code_is_fetched_when_it_is_unfolded(visitor: Visitor, showcase: Showcase) -> None:
    with visitor.at(f"/candidates/{showcase.ids[22]}") as page:
        assert "vmaxps" not in page.content()
        page.locator("summary", has_text="assembly").click()
        expect(page.get_by_label("assembly")).to_contain_text("vmaxps")
        assert visitor.complaints == []


def test_a_running_job_is_watched_without_reloading(visitor: Visitor, showcase: Showcase, database: str) -> None:
    engine = make_engine(database, "tests")
    with visitor.at(f"/jobs/{showcase.running_id}") as page:
        page.evaluate("() => { window.kept = true }")
        page.get_by_role("link", name="JSON").focus()
        with make_sessions(engine).begin() as session:
            job = jobs.fetch_job(session, showcase.running_id)
            candidates.add_candidates(session, job, [NewCandidate("rewrite", "builtin", QUEUE_CPU)])
        expect(page.get_by_role("rowheader", name=re.compile("rewrite"))).to_be_visible()
        assert page.evaluate("() => window.kept && document.activeElement.textContent") == "JSON"
        page.get_by_role("button", name="Cancel job").click()
        expect(page.get_by_role("button", name="Cancel job")).to_be_disabled()
        expect(page.locator(".head .badge")).to_have_text("cancelling")
        assert visitor.complaints == []
    engine.dispose()


def test_what_a_candidate_writes_stays_text(visitor: Visitor, showcase: Showcase) -> None:
    for path in (f"/candidates/{showcase.cheeky_id}", f"/jobs/{showcase.running_id}"):
        with visitor.at(path) as page:
            expect(page.locator("main img, main script")).to_have_count(0)
            assert "taken" not in page.title()
            assert visitor.complaints == []


def test_candidates_are_filtered_and_compared_without_scripts(visitor: Visitor, showcase: Showcase) -> None:
    with visitor.at(f"/jobs/{showcase.job_id}", scripts=False) as page:
        page.get_by_role("navigation", name="Candidates by verdict").get_by_role("link", name="incorrect").click()
        rows = page.locator("table.list tbody tr")
        expect(rows).to_have_count(1)
        rows.get_by_role("link", name="#6", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Candidate 6")
        page.get_by_label("Compare with").select_option(label="#4 refine, 1.22× (parent)")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("#6 and #4")
        expect(page.locator(".diff .removed")).to_contain_text(["Candidate 6", "four float accumulators"])


def test_the_form_says_what_is_wrong_then_what_the_judge_says_then_submits(visitor: Visitor) -> None:
    with visitor.at("/submit") as page:
        page.get_by_label("my own reference").check()
        page.get_by_role("textbox", name="Name").fill("mine")
        page.get_by_role("textbox", name="Reference").fill("class Model(:\n    pass\n")
        page.get_by_role("button", name="Submit").click()
        expect(page.get_by_role("alert")).to_contain_text("Nothing was submitted.")
        expect(page.get_by_role("textbox", name="Reference")).to_have_accessible_description(re.compile("line 1"))
        assert visitor.findings(page) == []
        visitor.picture(page, "submit-errors-desk")
        page.get_by_label("a bundled one").check()
        page.get_by_role("button", name="Check first").click()
        expect(page.get_by_role("status")).to_contain_text("zeros would pass in 1 of 9 families")
        assert visitor.findings(page) == []
        visitor.picture(page, "submit-checked-desk")
        page.get_by_role("button", name="Submit").click()
        expect(page).to_have_url(re.compile("/jobs/job_"))
        expect(page.locator(".head .badge")).to_have_text("queued")
