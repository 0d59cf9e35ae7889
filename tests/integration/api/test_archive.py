"""All candidates of the service: every filter, each row once while others are inserted, and pages that stay small."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.archive_schemas import ArchivedCandidate
from cli.client import Client, Job
from db import archive, llm_calls
from db.archive import ArchiveFilter
from db.llm_calls import CallRecord
from tests.integration.api.history import SOURCE, History

REPORT = json.loads((Path(__file__).parents[2] / "support/showcase/report.json").read_text())
OTHER = {"problem": "layernorm", "target": {"hardware": "nvidia-h100", "language": "triton"}}
Sessions = sessionmaker[Session]


def walked(http: httpx2.Client, query: str = "") -> list[dict[str, Any]]:
    """All rows, following the Link header."""
    seen: list[dict[str, Any]] = []
    path: str | None = f"/v1/candidates?{query}"
    while path:
        page = http.get(path).raise_for_status()
        seen += page.json()["data"]
        assert page.json()["has_more"] == ("next" in page.links)
        path = page.links.get("next", {}).get("url")
    return seen


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def test_a_row_has_the_job_the_evidence_and_the_cost(
    http: httpx2.Client, history: History, job: Job, sessions: Sessions
) -> None:
    candidate_id = history.evaluate(job["id"], **{**REPORT, "gpu_s": 2.5, "log": "x" * 3000})
    with sessions.begin() as session:
        call_id = llm_calls.start_call(session, candidate_id, "propose", "openai/gpt-5")
        record = CallRecord("openai/gpt-5", tokens_in=40, tokens_out=9, prompt_version="v7")
        llm_calls.finish_call(session, call_id, record)
    history.certify(job["id"])
    (row,) = walked(http, "include=source&include=workloads&include=profile")
    assert row["problem"] == job["problem"]
    assert row["target"] == job["target"]
    assert (row["tokens_in"], row["tokens_out"], row["prompt_version"]) == (40, 9, "v7")
    assert row["source"] == SOURCE.format(ordinal=candidate_id)
    assert row["source_bytes"] == len(row["source"])
    assert row["workloads"] == REPORT["workloads"]
    assert row["profile"] == REPORT["profile"]
    assert row["baselines_us"] == REPORT["baselines_us"]
    errors = [check["figures"]["error"] for check in REPORT["checks"] if "error" in check["figures"]]
    assert row["max_relative_error"] == max(errors) > 0
    assert row["log"] == "x" * 2000
    assert row["gpu_s"] == 2.5
    assert row["certificate"]["certified"] is True
    assert row["certificate"]["id"].startswith("cert_")
    shown = http.get(f"/v1/candidates/{candidate_id}").json()
    assert {name: row[name] for name in shown if name in row} == {name: shown[name] for name in shown if name in row}


def test_what_was_not_asked_for_is_null_and_what_is_not_there_too(
    http: httpx2.Client, history: History, job: Job
) -> None:
    history.evaluate(job["id"], **REPORT)
    history.reject(job["id"], "no_code")
    judged, rejected = walked(http)
    assert (judged["source"], judged["workloads"], judged["profile"]) == (None, None, None)
    assert judged["source_bytes"] > 0
    empty = ("verdict", "source_bytes", "environment", "certificate", "log", "max_relative_error", "gpu_s", "tokens_in")
    assert [rejected[name] for name in empty] == [None] * len(empty)
    assert (rejected["failure"], rejected["baselines_us"]) == ("no_code", {})


def test_filters(http: httpx2.Client, client: Client, history: History, job: Job) -> None:
    other = client.submit(OTHER)
    here = [history.evaluate(job["id"], speedup=1.0), history.evaluate(job["id"], verdict="incorrect", timed=False)]
    there = [history.evaluate(other["id"], speedup=2.0)]
    everything = walked(http)
    assert ids(everything) == here + there
    assert ids(walked(http, f"job={job['id']}")) == here
    assert ids(walked(http, "problem=layernorm")) == there
    assert ids(walked(http, "hardware=nvidia-h100&language=triton")) == there
    assert ids(walked(http, "language=cuda")) == []
    assert ids(walked(http, "verdict=incorrect")) == here[1:]
    moment = everything[1]["created_at"]
    assert ids(walked(http, f"created_after={moment}")) == there
    assert ids(walked(http, f"limit=1&created_after={everything[0]['created_at']}")) == here[1:] + there


@pytest.mark.parametrize("query", ["cursor=WzFd", "cursor=xx", "limit=1001", "include=all", "verdict=fine", "jobs=x"])
def test_a_bad_query_is_refused(http: httpx2.Client, query: str) -> None:
    assert http.get(f"/v1/candidates?{query}").status_code == 422


def test_each_row_comes_once_while_others_are_inserted(http: httpx2.Client, history: History, job: Job) -> None:
    before = history.propose(job["id"], 60)
    inserted: list[str] = []
    done = threading.Event()

    def insert() -> None:
        while not done.is_set():
            inserted.extend(history.propose(job["id"], 3))

    writers = [threading.Thread(target=insert) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        while not inserted:
            time.sleep(0.01)
        seen = ids(_first_pages(http, 25))
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert seen[: len(before)] == before
    assert len(seen) == len(set(seen))
    assert len(seen) > len(before)
    assert set(ids(walked(http, "limit=1000"))) == set(before) | set(inserted)


def _first_pages(http: httpx2.Client, pages: int) -> list[dict[str, Any]]:
    """Of seven rows each: there may be more, as long as others write."""
    seen: list[dict[str, Any]] = []
    path: str | None = "/v1/candidates?limit=7"
    for _ in range(pages):
        if path is None:
            break
        page = http.get(path).raise_for_status()
        seen += page.json()["data"]
        path = page.links.get("next", {}).get("url")
    return seen


def test_a_rare_verdict_makes_empty_pages_and_no_long_statement(
    http: httpx2.Client, history: History, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "WINDOW", 4)
    history.propose(job["id"], 9)
    (wanted,) = [history.evaluate(job["id"], verdict="suspicious", timed=False)]
    history.propose(job["id"], 2)
    pages = []
    path: str | None = "/v1/candidates?verdict=suspicious"
    while path:
        page = http.get(path).json()
        pages.append(ids(page["data"]))
        path = page["next_cursor"] and f"/v1/candidates?verdict=suspicious&cursor={page['next_cursor']}"
    assert pages == [[], [], [wanted], []]


def test_a_page_is_bounded_in_bytes_and_has_at_least_one_row(
    sessions: Sessions, history: History, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [history.evaluate(job["id"], **REPORT) for _ in range(5)]
    monkeypatch.setattr(archive, "PAGE_BYTES", 1)
    seen, sizes, cursor = [], [], None
    with sessions() as session:
        while True:
            page = archive.list_archive(session, ArchiveFilter(), ("source", "workloads"), limit=4, cursor=cursor)
            seen += [row.found.candidate.id for row in page.items]
            sizes.append(len(page.items))
            cursor = page.next_cursor
            if cursor is None:
                break
    assert seen == wanted
    assert sizes == [1] * 5
    monkeypatch.setattr(archive, "PAGE_BYTES", 1 << 20)
    with sessions() as session:
        assert len(archive.list_archive(session, ArchiveFilter(), ("source",), limit=4).items) == 4


def test_the_model_is_the_candidates_and_more(http: httpx2.Client, history: History, job: Job) -> None:
    history.evaluate(job["id"], **REPORT)
    (row,) = walked(http)
    assert ArchivedCandidate.model_validate(row).model_dump(mode="json") == row
