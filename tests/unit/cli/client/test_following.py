"""Following a job: every event once and in order, whatever happens to the connection."""

from __future__ import annotations

import httpx2
import pytest

from cli.client import PATIENCE_S, ApiError, Unreachable
from tests.unit.cli.wire import BOTH, Says, Time, Wire, answered, cut_off, event, job, streamed

STARTED = event(1, "job.started")
JUDGED = event(2, "candidate.evaluated", verdict="ok")
FINISHED = event(5, "job.finished")
GONE = httpx2.ConnectError("connection refused")


@pytest.fixture(params=BOTH)
def says(request: pytest.FixtureRequest) -> Says:
    made: Says = request.param
    return made


def _seqs(says: Says, wire: Wire, time: Time, *, patience_s: float = PATIENCE_S) -> list[int]:
    return [each["seq"] for each in says(wire, lambda client: client.follow("job_1", patience_s=patience_s), time)]


def test_it_ends_with_the_job(says: Says) -> None:
    wire, time = Wire(streamed(STARTED, JUDGED, FINISHED)), Time()
    assert _seqs(says, wire, time) == [1, 2, 5]
    assert time.pauses_s == []


def test_a_cut_connection_resumes_after_the_last_event_seen(says: Says) -> None:
    wire, time = Wire(cut_off(STARTED, JUDGED), GONE, GONE, streamed(FINISHED)), Time()
    assert _seqs(says, wire, time) == [1, 2, 5]
    assert [request.headers["Last-Event-ID"] for request in wire.requests] == ["0", "2", "2", "2"]
    assert time.pauses_s == sorted(time.pauses_s)


def test_an_event_that_is_sent_again_is_seen_once(says: Says) -> None:
    wire, time = Wire(cut_off(STARTED, JUDGED), streamed(JUDGED, FINISHED)), Time()
    assert _seqs(says, wire, time) == [1, 2, 5]


def test_a_stream_that_closes_while_the_job_goes_on_is_opened_again(says: Says) -> None:
    wire, time = Wire(streamed(STARTED), answered(job(state="running")), streamed(JUDGED, FINISHED)), Time()
    assert _seqs(says, wire, time) == [1, 2, 5]


def test_a_stream_that_closes_because_the_job_ended_leaves_no_event_behind(says: Says) -> None:
    late = event(6, "work.dead")
    pages = [
        answered({"data": [FINISHED], "next_after": 5, "has_more": True}),
        answered({"data": [late], "next_after": 6, "has_more": False}),
    ]
    wire, time = Wire(streamed(STARTED), answered(job(state="failed")), *pages), Time()
    assert _seqs(says, wire, time) == [1, 5, 6]
    assert [request.url.params.get("after") for request in wire.requests[2:]] == ["1", "5"]


def test_a_server_that_restarts_is_waited_for(says: Says) -> None:
    wire, time = Wire(answered({"detail": "no database"}, 503), streamed(FINISHED)), Time()
    assert _seqs(says, wire, time) == [5]


def test_patience_ends(says: Says) -> None:
    wire, time = Wire(*[GONE] * 100), Time()
    with pytest.raises(Unreachable):
        _seqs(says, wire, time, patience_s=30.0)
    assert 30.0 <= time.now_s < 40.0


def test_patience_starts_anew_with_each_event(says: Says) -> None:
    wire = Wire(*[GONE] * 5, cut_off(STARTED), *[GONE] * 5, streamed(FINISHED))
    assert _seqs(says, wire, Time(), patience_s=10.0) == [1, 5]


def test_an_unknown_job_is_no_reason_to_wait(says: Says) -> None:
    wire, time = Wire(answered({"detail": "no such job"}, 404)), Time()
    with pytest.raises(ApiError, match="no such job"):
        _seqs(says, wire, time)
    assert time.pauses_s == []
