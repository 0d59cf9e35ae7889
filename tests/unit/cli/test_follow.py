"""Following a job: every event once and in order, whatever happens to the connection."""

from __future__ import annotations

import httpx2
import pytest

from cli.client import ApiError, Unreachable
from cli.follow import PATIENCE_S, follow
from tests.unit.cli.wire import Wire, answered, cut_off, event, job, streamed

STARTED = event(1, "job.started")
JUDGED = event(2, "candidate.evaluated", verdict="ok")
FINISHED = event(5, "job.finished")
GONE = httpx2.ConnectError("connection refused")


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses_s.append(pause_s)


def _seqs(wire: Wire, time: Time, *, patience_s: float = PATIENCE_S) -> list[int]:
    with wire.client() as client:
        return [
            each["seq"] for each in follow(client, "job_1", clock=time.clock, sleep=time.sleep, patience_s=patience_s)
        ]


def test_it_ends_with_the_job() -> None:
    wire, time = Wire(streamed(STARTED, JUDGED, FINISHED)), Time()
    assert _seqs(wire, time) == [1, 2, 5]
    assert time.pauses_s == []


def test_a_cut_connection_resumes_after_the_last_event_seen() -> None:
    wire, time = Wire(cut_off(STARTED, JUDGED), GONE, GONE, streamed(FINISHED)), Time()
    assert _seqs(wire, time) == [1, 2, 5]
    assert [request.headers["Last-Event-ID"] for request in wire.requests] == ["0", "2", "2", "2"]
    assert time.pauses_s == sorted(time.pauses_s)


def test_an_event_that_is_sent_again_is_seen_once() -> None:
    wire, time = Wire(cut_off(STARTED, JUDGED), streamed(JUDGED, FINISHED)), Time()
    assert _seqs(wire, time) == [1, 2, 5]


def test_a_stream_that_closes_while_the_job_goes_on_is_opened_again() -> None:
    wire, time = Wire(streamed(STARTED), answered(job(state="running")), streamed(JUDGED, FINISHED)), Time()
    assert _seqs(wire, time) == [1, 2, 5]


def test_a_stream_that_closes_because_the_job_ended_leaves_no_event_behind() -> None:
    late = event(6, "work.dead")
    pages = [
        answered({"data": [FINISHED], "next_after": 5, "has_more": True}),
        answered({"data": [late], "next_after": 6, "has_more": False}),
    ]
    wire, time = Wire(streamed(STARTED), answered(job(state="failed")), *pages), Time()
    assert _seqs(wire, time) == [1, 5, 6]
    assert [request.url.params.get("after") for request in wire.requests[2:]] == ["1", "5"]


def test_a_server_that_restarts_is_waited_for() -> None:
    wire, time = Wire(answered({"detail": "no database"}, 503), streamed(FINISHED)), Time()
    assert _seqs(wire, time) == [5]


def test_patience_ends() -> None:
    wire, time = Wire(*[GONE] * 100), Time()
    with pytest.raises(Unreachable):
        _seqs(wire, time, patience_s=30.0)
    assert 30.0 <= time.now_s < 40.0


def test_patience_starts_anew_with_each_event() -> None:
    wire = Wire(*[GONE] * 5, cut_off(STARTED), *[GONE] * 5, streamed(FINISHED))
    assert _seqs(wire, Time(), patience_s=10.0) == [1, 5]


def test_an_unknown_job_is_no_reason_to_wait() -> None:
    wire, time = Wire(answered({"detail": "no such job"}, 404)), Time()
    with pytest.raises(ApiError, match="no such job"):
        _seqs(wire, time)
    assert time.pauses_s == []
