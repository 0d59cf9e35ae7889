"""Candidates, the best of them, and what is served as text."""

from __future__ import annotations

import httpx2
import pytest

from cli.client import ApiError, Client, Job
from tests.integration.api.history import SOURCE, History

REPORT = {
    "speedup": 1.5,
    "latency_us": 20.0,
    "ci95": [1.4, 1.6],
    "baseline": "compile",
    "speedups": {"eager": 3.0, "compile": 1.5},
    "checks": [{"name": "correct", "passed": True, "detail": "5 seeds"}],
    "log": "g++ -O3\nwarning: ü\n",
}


def test_candidates_come_in_the_order_they_were_made(client: Client, history: History, job: Job) -> None:
    ids = [history.evaluate(job["id"], speedup=1.0), history.reject(job["id"], "no_code"), *history.propose(job["id"])]
    data = client.candidates(job["id"])["data"]
    assert [each["id"] for each in data] == ids
    assert [each["ordinal"] for each in data] == [1, 2, 3]
    assert [each["state"] for each in data] == ["evaluated", "rejected", "proposing"]
    assert [each["verdict"] for each in data] == ["ok", None, None]
    assert (data[1]["failure"], data[1]["failure_detail"]) == ("no_code", "said no")
    assert data[0]["cost_usd"] == "0.00"


def test_the_fastest_first_page_by_page_with_the_unmeasured_last(client: Client, history: History, job: Job) -> None:
    speedups = [1.0, 3.0, None, 2.0, 2.0, None]
    ids = [history.evaluate(job["id"], speedup=each, timed=each is not None) for each in speedups]
    seen: list[str] = []
    cursor = None
    while True:
        page = client.candidates(job["id"], sort="-speedup", limit=2, cursor=cursor)
        seen += [each["id"] for each in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [ids[place] for place in (1, 3, 4, 0, 2, 5)]


def test_candidates_of_one_verdict(client: Client, history: History, job: Job) -> None:
    history.evaluate(job["id"], speedup=1.0)
    wrong = history.evaluate(job["id"], verdict="incorrect", timed=False)
    assert [each["id"] for each in client.candidates(job["id"], verdict="incorrect")["data"]] == [wrong]


@pytest.mark.parametrize("query", ["verdict=fine", "sort=speedup", "state=done", "cursor=WzFd", "cursor=WyJ4IiwieCJd"])
def test_a_bad_query_is_refused(http: httpx2.Client, job: Job, query: str) -> None:
    answer = http.get(f"/v1/jobs/{job['id']}/candidates?sort=-speedup&{query}")
    assert answer.status_code == 422


def test_a_candidate_shows_source_and_report(client: Client, history: History, job: Job) -> None:
    candidate = client.candidate(history.evaluate(job["id"], **REPORT))
    assert candidate["source"] == SOURCE.format(ordinal=candidate["id"])
    assert candidate["report"] is not None
    assert candidate["report"]["speedups"] == {"eager": 3.0, "compile": 1.5}
    assert (candidate["speedup"], candidate["ci95"], candidate["baseline"]) == (1.5, [1.4, 1.6], "compile")
    assert candidate["plan"] == "a plan"


def test_source_and_log_as_text(http: httpx2.Client, history: History, job: Job) -> None:
    candidate = history.evaluate(job["id"], **REPORT)
    source = http.get(f"/v1/candidates/{candidate}/source")
    log = http.get(f"/v1/candidates/{candidate}/log")
    assert (source.headers["content-type"], source.text) == (
        "text/x-python; charset=utf-8",
        SOURCE.format(ordinal=candidate),
    )
    assert (log.headers["content-type"], log.text) == ("text/plain; charset=utf-8", REPORT["log"])


def test_a_candidate_without_source_or_log_says_so(http: httpx2.Client, history: History, job: Job) -> None:
    (candidate,) = history.propose(job["id"])
    for part, kind in (("source", "no-source"), ("log", "no-log")):
        answer = http.get(f"/v1/candidates/{candidate}/{part}")
        assert (answer.status_code, answer.json()["type"]) == (404, f"urn:kernelwright:error:{kind}")
    answer = http.get("/v1/candidates/cand_0")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:kernelwright:error:unknown-candidate")


def test_the_best_is_the_fastest_verified_as_json_or_as_source(
    http: httpx2.Client, client: Client, history: History, job: Job
) -> None:
    path = f"/v1/jobs/{job['id']}/best"
    with pytest.raises(ApiError, match="verified") as none:
        client.best(job["id"])
    assert (none.value.status, none.value.type) == (404, "urn:kernelwright:error:no-best-yet")
    history.evaluate(job["id"], speedup=9.0, verdict="suspicious")
    slow, fast = history.evaluate(job["id"], speedup=1.1), history.evaluate(job["id"], speedup=1.2)
    assert slow != client.best(job["id"])["id"] == fast
    source = SOURCE.format(ordinal=fast)
    assert client.best_source(job["id"]) == source
    plain = http.get(path, headers={"Accept": "text/plain"})
    assert (plain.headers["content-type"], plain.text) == ("text/plain; charset=utf-8", source)
    assert http.get(path, headers={"Accept": "*/*"}).json()["id"] == fast
