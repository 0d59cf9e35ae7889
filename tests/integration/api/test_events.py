"""A job's events as pages and as a stream: no gap, no repeat, no connection for each reader."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from cli.client import Client, Event, Job
from db.settings import Settings
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.history import History
from tests.integration.api.server import serving

STREAM = {"Accept": "text/event-stream"}


def messages(response: httpx2.Response) -> Iterator[dict[str, str]]:
    """The stream's events as the wire has them."""
    message: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            message[name] = value
        elif message:
            yield message
            message = {}


def test_pages_follow_each_other_by_seq(client: Client, history: History, job: Job) -> None:
    history.start(job["id"])
    history.propose(job["id"], 3)
    first = client.events(job["id"], limit=2)
    rest = client.events(job["id"], after=first["next_after"], limit=100)
    assert [each["type"] for each in first["data"]] == ["job.created", "job.started"]
    assert [each["type"] for each in rest["data"]] == ["candidate.created"] * 3
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert all(each["at"].endswith("Z") and each["job_id"] == job["id"] for each in first["data"])
    nothing = client.events(job["id"], after=rest["next_after"])
    assert nothing == {"data": [], "next_after": rest["next_after"], "has_more": False}


def test_events_of_other_jobs_are_not_shown(client: Client, job: Job) -> None:
    other = client.submit(BODY)
    assert [each["job_id"] for each in client.events(job["id"])["data"]] == [job["id"]]
    assert [each["job_id"] for each in client.events(other["id"])["data"]] == [other["id"]]


def test_a_stream_shows_what_was_then_what_comes_and_ends_with_the_job(
    client: Client, history: History, job: Job
) -> None:
    stream = client.stream(job["id"])
    assert next(stream)["type"] == "job.created"
    history.start(job["id"])
    assert next(stream)["type"] == "job.started"
    candidate = history.evaluate(job["id"], speedup=2.0)
    types = []
    for each in stream:
        types.append(each["type"])
        if each["type"] == "job.improved":
            assert each["data"]["candidate_id"] == candidate
            history.finish(job["id"])
    assert types[-2:] == ["job.improved", "job.finished"]


def test_the_wire_has_id_event_and_data(http: httpx2.Client, history: History, job: Job) -> None:
    history.finish(job["id"])
    with http.stream("GET", f"/v1/jobs/{job['id']}/events", headers=STREAM) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        first, last = messages(response)
    assert (first["event"], last["event"]) == ("job.created", "job.finished")
    assert first["id"] == str(json.loads(first["data"])["seq"])


def test_a_dropped_stream_resumes_without_gap_or_repeat(
    http: httpx2.Client, client: Client, history: History, job: Job
) -> None:
    path = f"/v1/jobs/{job['id']}/events"
    history.start(job["id"])
    history.propose(job["id"], 2)
    with http.stream("GET", path, headers=STREAM) as response:
        seen = list(islice(messages(response), 2))
    history.propose(job["id"], 2)
    history.finish(job["id"])
    # A browser asks for the same URL again, `after` and all, so the header goes first.
    resume = STREAM | {"Last-Event-ID": seen[-1]["id"]}
    with http.stream("GET", path, params={"after": 0}, headers=resume) as response:
        seen += list(messages(response))
    assert [int(each["id"]) for each in seen] == [each["seq"] for each in client.events(job["id"])["data"]]


def test_a_stream_of_an_ended_job_that_was_read_to_its_end_is_not_opened_again(
    http: httpx2.Client, client: Client, history: History, job: Job
) -> None:
    history.finish(job["id"])
    last = client.events(job["id"])["next_after"]
    answer = http.get(f"/v1/jobs/{job['id']}/events", headers=STREAM | {"Last-Event-ID": str(last)})
    assert (answer.status_code, answer.content) == (204, b"")


def test_a_long_history_comes_whole(client: Client, history: History, job: Job) -> None:
    history.propose(job["id"], 450)
    history.finish(job["id"])
    assert len(list(client.stream(job["id"]))) == 452


@pytest.mark.parametrize(
    ("headers", "query", "pointer"),
    [
        (STREAM | {"Last-Event-ID": "x"}, {}, "header:last-event-id"),
        ({}, {"after": -1}, "?after"),
        ({}, {"limit": 0}, "?limit"),
        (STREAM, {"since": 1}, "?since"),
    ],
)
def test_bad_positions_are_named(
    http: httpx2.Client, job: Job, headers: dict[str, str], query: dict[str, Any], pointer: str
) -> None:
    answer = http.get(f"/v1/jobs/{job['id']}/events", headers=headers, params=query)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_many_streams_hold_no_connections(url: str, client: Client, history: History, job: Job) -> None:
    opened = threading.Barrier(31)

    def follow(_: int) -> list[Event]:
        with Client(url) as own:
            stream = own.stream(job["id"])
            first = next(stream)
            opened.wait(timeout=60)
            return [first, *stream]

    with ThreadPoolExecutor(30) as threads:
        following = [threads.submit(follow, each) for each in range(30)]
        opened.wait(timeout=60)
        history.finish(job["id"])
        assert {len(each.result(timeout=60)) for each in following} == {2}


def test_waiters_hear_of_changes_while_listening_is_impossible(
    settings: Settings, sessions: sessionmaker[Session], bells: Bells
) -> None:
    """The fallback: somebody ends the LISTEN connection again and again, as a pooler or a failover does."""
    over = threading.Event()
    feeds = " FROM pg_stat_activity WHERE application_name = 'kernelwright-api-feed' AND datname = current_database()"
    with sessions() as session:  # of the server of the other tests, which takes a second to listen again
        others = list(session.scalars(text("SELECT pid" + feeds)))

    def cut() -> None:
        kill = text("SELECT pg_terminate_backend(pid)" + feeds + " AND pid <> ALL(:others)")
        while not over.wait(0.05):
            with sessions() as session:
                session.execute(kill, {"others": others})

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with serving(create_app(settings, ring=bells)) as url, Client(url) as client:
            job = client.submit(BODY)
            stream = client.stream(job["id"])
            assert next(stream)["type"] == "job.created"
            History(sessions).finish(job["id"])
            assert next(stream)["type"] == "job.finished"
    finally:
        over.set()
        cutter.join()
