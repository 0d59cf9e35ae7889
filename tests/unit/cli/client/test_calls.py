"""The client: what it asks for, and how a refusal reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from cli.client import NO_RETRY, ApiError, Client, ClientError, Invalid, ServerError, Unreachable

PROBLEM = {
    "type": "urn:kernelwright:error:invalid",
    "title": "Invalid request",
    "status": 422,
    "detail": "#/seed: is negative",
    "request_id": "req_1",
    "errors": [{"pointer": "#/seed", "detail": "is negative"}, {"pointer": "#/usd", "detail": "is no amount"}],
}


def client(answer: Callable[[httpx2.Request], httpx2.Response], key: str | None = None) -> Client:
    return Client("http://api/", key, retry=NO_RETRY, transport=httpx2.MockTransport(answer))


def asked(call: Callable[[Client], Any], body: Any = None) -> httpx2.Request:
    """The request that a call makes."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json=body if body is not None else {"data": []})

    with client(answer, key="ks_live_1") as made:
        call(made)
    (request,) = seen
    return request


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda c: c.submit({"problem": "softmax"}), "POST /v1/jobs"),
        (lambda c: c.dry_run({}), "POST /v1/jobs?dry_run=true"),
        (lambda c: c.job("job_1"), "GET /v1/jobs/job_1"),
        (lambda c: c.job("job_1", wait_s=5, since_version=3), "GET /v1/jobs/job_1?wait=5&since_version=3"),
        (lambda c: c.jobs(state="running", label="a:b", limit=2), "GET /v1/jobs?state=running&label=a%3Ab&limit=2"),
        (lambda c: c.events("job_1", after=7), "GET /v1/jobs/job_1/events?after=7"),
        (lambda c: c.candidates("job_1", sort="-speedup"), "GET /v1/jobs/job_1/candidates?sort=-speedup"),
        (lambda c: c.candidate("cand_1"), "GET /v1/candidates/cand_1"),
        (lambda c: c.best("job_1"), "GET /v1/jobs/job_1/best"),
        (lambda c: c.cancel("job_1", reason="x"), "POST /v1/jobs/job_1/cancel"),
        (lambda c: c.problems(), "GET /v1/problems"),
        (lambda c: c.problem("a/../b?c"), "GET /v1/problems/a%2F..%2Fb%3Fc"),
        (lambda c: c.workers(), "GET /v1/workers"),
    ],
)
def test_each_call_asks_for_its_address(call: Callable[[Client], Any], line: str) -> None:
    request = asked(call)
    assert f"{request.method} {request.url.raw_path.decode()}" == line
    assert request.headers["authorization"] == "Bearer ks_live_1"


def test_a_submission_is_json_with_its_key() -> None:
    request = asked(lambda c: c.submit({"problem": "softmax"}, idempotency_key="k1"))
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == "k1"
    assert json.loads(request.content) == {"problem": "softmax"}


def test_the_best_source_is_asked_for_as_text() -> None:
    assert asked(lambda c: c.best_source("job_1")).headers["accept"] == "text/x-python"


def test_a_long_poll_is_given_its_time_beyond_the_usual_timeout() -> None:
    usual, patient = asked(lambda c: c.job("j")), asked(lambda c: c.job("j", wait_s=60))
    assert patient.extensions["timeout"]["read"] == usual.extensions["timeout"]["read"] + 60


def test_a_refusal_names_every_field_at_fault() -> None:
    with client(lambda _: httpx2.Response(422, json=PROBLEM)) as made, pytest.raises(Invalid) as refused:
        made.submit({})
    error = refused.value
    assert str(error) == "#/seed: is negative\n  #/usd: is no amount"
    assert (error.status, error.title, error.request_id) == (422, "Invalid request", "req_1")
    assert [each["pointer"] for each in error.errors] == ["#/seed", "#/usd"]


def test_a_proxys_page_is_a_refusal_too() -> None:
    refused = pytest.raises(ServerError, match="HTTP 502 without a problem document")
    with client(lambda _: httpx2.Response(502, text="<html>bad gateway</html>")) as made, refused:
        made.jobs()


def test_nobody_there() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused", request=request)

    with client(answer) as made:
        with pytest.raises(Unreachable, match=r"http://api \(connection refused\)"):
            made.jobs()
        with pytest.raises(Unreachable):
            list(made.stream("job_1"))
        assert made.ready() is False
    assert issubclass(Unreachable, ClientError)


def test_a_stream_yields_the_data_and_skips_the_rest() -> None:
    wire = b'event: a\ndata: {"seq": 1}\nid: 1\n\n: ping\n\nevent: b\ndata: {"seq": 2}\nid: 2\n\n'
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, content=wire)

    with client(answer) as made:
        assert [event["seq"] for event in made.stream("job_1", after=0)] == [1, 2]
    assert (seen[0].headers["accept"], seen[0].headers["last-event-id"]) == ("text/event-stream", "0")


def test_a_refused_stream_raises_before_anything_is_yielded() -> None:
    with client(lambda _: httpx2.Response(404, json=PROBLEM | {"status": 404})) as made, pytest.raises(ApiError):
        next(made.stream("job_1"))
