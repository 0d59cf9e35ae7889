"""Looking at jobs, waiting for them, listing and cancelling them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

from api import glances, places
from cli.client import ApiError, Client, Job
from db import events
from db.vocabulary import CandidateState, EventType, StopReason, Verdict
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.history import History


class Statements:
    """What is sent to databases meanwhile, by any connection of this process."""

    def __init__(self) -> None:
        self._seen: list[str] = []

    def __enter__(self) -> Statements:
        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", self._note)

    def about(self, words: str) -> list[str]:
        """Those with these words in them."""
        return [each for each in self._seen if words in each]

    def _note(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self._seen.append(statement)


def polls_counted(http: httpx2.Client) -> float:
    """Answers 304 to polls of a job, by the service's own count."""
    found = [
        line for line in http.get("/metrics").text.splitlines() if 'route="/v1/jobs/{job_id}",status="304"' in line
    ]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def test_a_job_shows_its_progress_its_best_and_its_spending(client: Client, history: History, job: Job) -> None:
    history.start(job["id"])
    history.evaluate(job["id"], verdict="incorrect", timed=False, reason="off by one")
    report = {"speedup": 1.5, "latency_us": 20.0, "ci95": [1.4, 1.6], "baseline": "compile", "gpu_s": 2.5}
    best = history.evaluate(job["id"], **report)
    history.propose(job["id"])
    now = client.job(job["id"])
    assert now["state"] == "running" and now["started_at"] is not None
    assert now["queue"] == {"position": None}
    assert now["progress"]["candidates"] == {state: 0 for state in CandidateState} | {"evaluated": 2, "proposing": 1}
    assert now["progress"]["verdicts"] == {verdict: 0 for verdict in Verdict} | {"ok": 1, "incorrect": 1}
    assert now["best"] == {
        "candidate_id": best,
        "speedup": 1.5,
        "latency_us": 20.0,
        "ci95": [1.4, 1.6],
        "baseline": "compile",
        "certified": False,
    }
    assert now["cost"]["gpu_s"] == 2.5
    assert now["version"] > job["version"]


def test_an_ended_job_says_why_and_asks_for_no_retry(http: httpx2.Client, history: History, job: Job) -> None:
    history.evaluate(job["id"], speedup=2.0)
    history.finish(job["id"], StopReason.TARGET_REACHED)
    answer = http.get(f"/v1/jobs/{job['id']}")
    assert (answer.json()["state"], answer.json()["stop_reason"]) == ("succeeded", "target_reached")
    assert answer.json()["finished_at"] is not None
    assert "retry-after" not in answer.headers


def test_an_unchanged_job_is_a_304_and_a_changed_one_is_not(http: httpx2.Client, history: History, job: Job) -> None:
    path = f"/v1/jobs/{job['id']}"
    history.start(job["id"])
    tag = http.get(path).headers["etag"]
    for _ in range(3):  # from the rows, then from memory
        again = http.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    history.propose(job["id"])
    until = time.monotonic() + 20  # another's change comes by a notification
    while (changed := http.get(path, headers={"If-None-Match": tag})).status_code == 304:
        assert time.monotonic() < until
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


def test_a_poll_answered_from_memory_is_counted_and_looks_like_any_other(
    http: httpx2.Client, history: History, job: Job
) -> None:
    path = f"/v1/jobs/{job['id']}"
    history.start(job["id"])
    tag = http.get(path).headers["etag"]
    if_new = {"If-None-Match": tag, "X-Request-Id": "mine"}
    until = time.monotonic() + 20
    while True:  # the notification of the start may come between the two
        before = polls_counted(http)
        with Statements() as seen:
            read, remembered = http.get(path, headers=if_new), http.get(path, headers=if_new)
        if len(seen.about("FROM jobs")) == 1 or time.monotonic() > until:
            break
        time.sleep(glances.REMEMBERED_S + 0.1)
    assert [len(seen.about("FROM jobs")), read.status_code, remembered.status_code] == [1, 304, 304]
    varying = {"date"}
    assert {name: value for name, value in read.headers.items() if name not in varying} == {
        name: value for name, value in remembered.headers.items() if name not in varying
    }
    assert remembered.headers["x-request-id"] == "mine"
    assert polls_counted(http) == before + 2
    assert http.get(path).status_code == 200
    assert http.get(path, headers={"If-None-Match": '"0"'}).status_code == 200
    assert http.get(path, headers=if_new, params={"sate": "running"}).status_code == 422
    assert http.post(path, headers=if_new).status_code == 405


def test_in_a_long_queue_a_place_is_as_old_as_its_ranking(
    http: httpx2.Client, client: Client, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LONG", 1)
    first, second = client.submit(BODY), client.submit(BODY)
    time.sleep(places.HELD_AT_LEAST_S)
    path = f"/v1/jobs/{second['id']}"
    tag = http.get(path).headers["etag"]
    assert [http.get(path, headers={"If-None-Match": tag}).status_code for _ in range(2)] == [304, 304]
    history.start(first["id"])
    time.sleep(places.HELD_AT_LEAST_S)
    moved = http.get(path, headers={"If-None-Match": tag})
    assert (moved.status_code, moved.json()["queue"]) == (200, {"position": 1})


def test_a_waiting_job_that_moves_up_is_not_unchanged(http: httpx2.Client, client: Client, history: History) -> None:
    first, second = client.submit(BODY), client.submit(BODY)
    urgent = client.submit(BODY | {"priority": 1})
    assert [client.job(each["id"])["queue"]["position"] for each in (urgent, first, second)] == [1, 2, 3]
    tag = http.get(f"/v1/jobs/{second['id']}").headers["etag"]
    history.start(first["id"])
    moved = http.get(f"/v1/jobs/{second['id']}", headers={"If-None-Match": tag})
    assert (moved.status_code, moved.json()["queue"]) == (200, {"position": 2})


def test_wait_returns_when_the_job_changes(client: Client, history: History, job: Job) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.job, job["id"], wait_s=60, since_version=job["version"])
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        history.start(job["id"])
        changed = waiting.result(timeout=30)
    assert changed["state"] == "running"
    assert changed["version"] == job["version"] + 1


def test_wait_with_if_none_match_is_a_304_when_the_time_is_over(
    http: httpx2.Client, job: Job, history: History
) -> None:
    history.start(job["id"])
    path = f"/v1/jobs/{job['id']}"
    tag = http.get(path).headers["etag"]
    assert http.get(path, params={"wait": 0.2}, headers={"If-None-Match": tag}).status_code == 304


def test_wait_without_a_version_waits_for_the_next_change(client: Client, history: History, job: Job) -> None:
    assert client.job(job["id"], wait_s=0.2)["version"] == job["version"]


def test_wait_returns_at_once_when_something_is_new_or_nothing_ever_will_be(
    client: Client, history: History, job: Job
) -> None:
    history.start(job["id"])
    assert client.job(job["id"], wait_s=60, since_version=job["version"])["state"] == "running"
    history.finish(job["id"])
    ended = client.job(job["id"])
    assert client.job(job["id"], wait_s=60, since_version=ended["version"]) == ended


def test_many_waiters_need_no_connection_each(url: str, client: Client, history: History, job: Job) -> None:
    def wait(_: int) -> int:
        path = f"{url}/v1/jobs/{job['id']}"
        query = {"wait": "60", "since_version": str(job["version"])}
        return int(httpx2.get(path, params=query, timeout=90).json()["version"])

    # Twice what the pool can hand out: were each to hold one, some would get a 503 or wait for the others.
    with ThreadPoolExecutor(40) as threads:
        waiting = [threads.submit(wait, each) for each in range(40)]
        assert client.job(job["id"])["version"] == job["version"]
        history.start(job["id"])
        assert {each.result(timeout=60) for each in waiting} == {job["version"] + 1}


def test_a_cancel_is_said_once(http: httpx2.Client, job: Job, bells: Bells, sessions: sessionmaker[Session]) -> None:
    path = f"/v1/jobs/{job['id']}/cancel"
    first = http.post(path, json={"reason": "wrong op"})
    again = http.post(path)
    assert (first.status_code, first.json()["changed"], first.json()["job"]["state"]) == (202, True, "cancelling")
    assert (again.status_code, again.json()["changed"]) == (200, False)
    with sessions() as session:
        asked = [each for each in events.page(session, job["id"]) if each.type == EventType.JOB_CANCEL_REQUESTED]
    assert [each.data for each in asked] == [{"reason": "wrong op"}]


def test_a_cancel_of_an_ended_job_changes_nothing(client: Client, history: History, job: Job) -> None:
    history.finish(job["id"])
    answer = client.cancel(job["id"], reason="too late")
    assert (answer["changed"], answer["job"]["state"]) == (False, "failed")


def test_pages_show_each_job_once_while_others_are_submitted(client: Client, http: httpx2.Client) -> None:
    before = [client.submit(BODY)["id"] for _ in range(7)]
    seen: list[str] = []
    path: str | None = "/v1/jobs?limit=2&problem=softmax"
    while path is not None:
        answer = http.get(path)
        page = answer.json()
        seen += [each["id"] for each in page["data"]]
        client.submit(BODY)
        assert page["has_more"] is (page["next_cursor"] is not None) is ("link" in answer.headers)
        path = answer.headers["link"].partition(">")[0][1:] if page["has_more"] else None
        assert path is None or "problem=softmax" in path
    assert seen == before[::-1]


def test_filters(client: Client, history: History) -> None:
    cpu = client.submit(BODY | {"labels": {"team": "a", "run": "x:y"}})
    gpu = client.submit({"problem": "layernorm", "target": {"hardware": "nvidia-h100", "language": "cuda"}})
    history.start(gpu["id"])

    def found(**where: Any) -> list[str]:
        return [each["id"] for each in client.jobs(**where)["data"]]

    assert found() == [gpu["id"], cpu["id"]]
    assert found(state="queued") == found(problem="softmax") == found(hardware="cpu") == found(language="cpp")
    assert found(label="run:x:y") == found(label="team:a") == found(state="queued") == [cpu["id"]]
    assert found(label="team:b") == []
    assert found(created_after=cpu["created_at"]) == [gpu["id"]]


def test_several_labels_must_all_match(http: httpx2.Client, client: Client) -> None:
    both = client.submit(BODY | {"labels": {"team": "a", "run": "1"}})
    client.submit(BODY | {"labels": {"team": "a"}})
    found = http.get("/v1/jobs", params=[("label", "team:a"), ("label", "run:1")]).json()["data"]
    assert [each["id"] for each in found] == [both["id"]]


@pytest.mark.parametrize(
    ("query", "pointer", "text"),
    [
        ("sate=running", "?sate", "knows state, problem"),
        ("state=runing", "?state", "'queued'"),
        ("limit=0", "?limit", "greater than or equal to 1"),
        ("limit=1000", "?limit", "less than or equal to 200"),
        ("cursor=rubbish", "?cursor", "of this list"),
        ("cursor=../..", "?cursor", "pattern"),
        ("label=team", "?label.0", "pattern"),
        ("created_after=yesterday", "?created_after", "datetime"),
        ("created_after=0.5", "?created_after", "such as 2026-11-21T00:00:00Z"),
        ("created_after=2026-01-01T00:00:00", "?created_after", "timezone"),
        ("problem=%00", "?problem", "NUL"),
    ],
)
def test_a_bad_query_is_named(http: httpx2.Client, query: str, pointer: str, text: str) -> None:
    answer = http.get(f"/v1/jobs?{query}")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert text in error["detail"]


@pytest.mark.parametrize("path", ["", "/events", "/candidates", "/best", "/certificate"])
def test_an_unknown_job_is_a_404_everywhere(http: httpx2.Client, path: str) -> None:
    answer = http.get(f"/v1/jobs/job_0{path}")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:kernelwright:error:unknown-job")
    assert answer.json()["instance"] == f"/v1/jobs/job_0{path}"


def test_an_unknown_job_cannot_be_cancelled(client: Client) -> None:
    with pytest.raises(ApiError) as error:
        client.cancel("job_0")
    assert error.value.status == 404


def test_a_nul_in_an_id_is_no_fault_of_ours(http: httpx2.Client) -> None:
    assert http.get("/v1/jobs/a%00b").status_code == 422
