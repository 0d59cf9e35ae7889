"""What is sent again, when, and what must not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from cli.client import Retry, ServerError, TooManyRequests, Unreachable
from tests.unit.cli.wire import BOTH, Says, Time, Wire, answered, job

RETRY = Retry(attempts=4)
GONE = httpx2.ConnectError("connection refused")
CUT = httpx2.ReadError("connection reset")
AWAY = [answered({"detail": "away"}, status) for status in (502, 503, 504)]
JOB = answered(job())
ASKED: list[tuple[str, Callable[[Any], Any]]] = [
    ("job", lambda client: client.job("job_1")),
    ("submit", lambda client: client.submit({"problem": "softmax"})),
    ("cancel", lambda client: client.cancel("job_1")),
    ("tell", lambda client: client.tell("job_1", "cand_1", "token", source="x")),
    ("revoke_key", lambda client: client.revoke_key("ranking")),
]


def busy(after: str | None) -> httpx2.Response:
    headers = {} if after is None else {"Retry-After": after}
    return httpx2.Response(429, json={"detail": "too many"}, headers=headers)


@pytest.fixture(params=BOTH)
def says(request: pytest.FixtureRequest) -> Says:
    made: Says = request.param
    return made


@pytest.mark.parametrize(("name", "call"), ASKED, ids=[name for name, _ in ASKED])
def test_what_may_be_repeated_is(says: Says, name: str, call: Callable[[Any], Any]) -> None:
    wire, time = Wire(CUT, GONE, AWAY[1], JOB), Time()
    assert says(wire, call, time, retry=RETRY)["id"] == "job_1"
    assert len(wire.requests) == 4
    # 0.25, 0.5 and 1 s, each shortened by up to a half.
    assert all(low <= pause <= 2 * low for low, pause in zip((0.125, 0.25, 0.5), time.pauses_s, strict=True))


def test_a_submission_that_is_sent_again_is_the_same_one(says: Says) -> None:
    wire = Wire(CUT, AWAY[0], JOB)
    says(wire, lambda client: client.submit({"problem": "softmax"}), retry=RETRY)
    assert len({request.headers["Idempotency-Key"] for request in wire.requests}) == 1
    assert [json.loads(request.content) for request in wire.requests] == [{"problem": "softmax"}] * 3


def test_two_submissions_are_two_jobs(says: Says) -> None:
    keys = set()
    for _ in range(2):
        wire = Wire(JOB)
        says(wire, lambda client: client.submit({"problem": "softmax"}))
        keys.add(wire.requests[0].headers["Idempotency-Key"])
    assert len(keys) == 2


@pytest.mark.parametrize("outcome", [CUT, *AWAY])
def test_what_makes_something_new_is_sent_once(says: Says, outcome: httpx2.Response | Exception) -> None:
    for call in (lambda client: client.make_key("ranking"), lambda client: client.request({"request": "softmax"})):
        wire = Wire(outcome)
        with pytest.raises((Unreachable, ServerError)):
            says(wire, call, retry=RETRY)
        assert len(wire.requests) == 1


def test_what_was_never_sent_or_never_taken_is_sent_again(says: Says) -> None:
    wire = Wire(GONE, busy("0"), answered({"key": {}, "token": "t"}))
    assert says(wire, lambda client: client.make_key("ranking"), retry=RETRY)["token"] == "t"


def test_a_429_is_waited_for_as_long_as_it_says(says: Says) -> None:
    wire, time = Wire(busy("7"), busy("2"), JOB), Time()
    says(wire, lambda client: client.job("job_1"), time, retry=RETRY)
    assert time.pauses_s == [7.0, 2.0]


def test_a_429_that_says_nothing_is_waited_for_a_little(says: Says) -> None:
    wire, time = Wire(busy(None), JOB), Time()
    says(wire, lambda client: client.job("job_1"), time, retry=RETRY)
    assert 0 < time.pauses_s[0] <= 0.25


def test_a_quota_that_is_full_for_an_hour_is_not_waited_for(says: Says) -> None:
    wire, time = Wire(busy("3600")), Time()
    with pytest.raises(TooManyRequests) as refused:
        says(wire, lambda client: client.job("job_1"), time, retry=RETRY)
    assert refused.value.retry_after_s == 3600.0
    assert time.pauses_s == []


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500])
def test_an_answer_that_would_be_the_same_is_believed(says: Says, status: int) -> None:
    wire = Wire(answered({"detail": "no"}, status))
    with pytest.raises(Exception, match="no"):
        says(wire, lambda client: client.job("job_1"), retry=RETRY)
    assert len(wire.requests) == 1


def test_it_ends(says: Says) -> None:
    wire = Wire(*[GONE] * 4)
    with pytest.raises(Unreachable, match="connection refused"):
        says(wire, lambda client: client.job("job_1"), retry=RETRY)
    assert wire.unused == 0


def test_ready_is_a_question_about_now(says: Says) -> None:
    for outcome in (GONE, AWAY[1]):
        wire = Wire(outcome)
        assert says(wire, lambda client: client.ready(), retry=RETRY) is False
        assert len(wire.requests) == 1
    assert says(Wire(answered({"ready": True, "migration": "0001"})), lambda client: client.ready()) is True


def test_waiting_polls_with_the_version_seen_until_the_end(says: Says) -> None:
    wire = Wire(answered(job(version=3)), CUT, answered(job(version=4)), answered(job(state="failed", version=9)))
    assert says(wire, lambda client: client.wait("job_1"), retry=RETRY)["state"] == "failed"
    seen = [request.url.params.get("since_version") for request in wire.requests]
    assert seen == [None, "3", "3", "4"]


def test_waiting_gives_up_in_time(says: Says) -> None:
    wire = Wire(answered(job(version=3)))
    assert says(wire, lambda client: client.wait("job_1", timeout_s=0.0))["state"] == "running"
