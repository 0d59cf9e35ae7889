"""What surrounds every request: ids, refusals before parsing, and a 500 that keeps its innards to itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware import FrontMiddleware


@dataclass
class Answer:
    """What went out."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


def ask(
    app: ASGIApp, headers: dict[str, str] | None = None, parts: Iterable[bytes] = (), path: str = "/v1/jobs"
) -> Answer:
    """One request through the middleware, without a server."""
    sent: list[Message] = []
    waiting = list(parts) or [b""]

    async def receive() -> Message:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": raw}
    asyncio.run(FrontMiddleware(app, max_body_bytes=10)(scope, receive, send))
    start, *bodies = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(each["body"] for each in bodies))


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("a secret")


async def half_broken(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("a secret")


JSON = {"Content-Type": "application/json"}
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_is_told_of_a_fault_of_ours_on_a_page_and_a_program_is_not() -> None:
    page = ask(broken, BROWSER, path="/jobs")
    assert (page.status, page.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert b"<h1>" in page.body and b"a secret" not in page.body
    assert page.headers["x-request-id"].encode() in page.body
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for path, headers in (("/v1/jobs", BROWSER), ("/jobs", JSON)):
        assert ask(broken, headers, path=path).problem["status"] == 500


def test_a_request_gets_an_id_of_ours() -> None:
    first, second = ask(echo), ask(echo)
    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize(
    ("given", "kept"), [("trace-1.a_B", True), ("", False), ("a b", False), ("x" * 65, False), ("a\x1b[31m", False)]
)
def test_a_clients_id_is_kept_when_it_can_go_into_a_log(given: str, kept: bool) -> None:
    assert (ask(echo, {"X-Request-Id": given}).headers["x-request-id"] == given) is kept


def test_what_nobody_caught_is_a_500_that_says_nothing_of_it() -> None:
    answer = ask(broken)
    assert (answer.status, answer.headers["content-type"]) == (500, "application/problem+json")
    assert answer.problem["request_id"] == answer.headers["x-request-id"]
    assert b"secret" not in answer.body


def test_half_an_answer_is_cut_off_and_not_completed() -> None:
    with pytest.raises(RuntimeError):
        ask(half_broken)


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await echo(scope, receive, send)
    except HTTPException as error:
        await send({"type": "http.response.start", "status": error.status_code, "headers": []})
        await send({"type": "http.response.body", "body": error.detail.encode()})


def test_a_body_that_declares_too_much_is_not_read() -> None:
    answer = ask(echo, JSON | {"Content-Length": "11"}, [b"x" * 11])
    assert (answer.status, answer.headers["connection"]) == (413, "close")


def test_a_body_that_grows_too_large_is_cut_where_it_is_read() -> None:
    answer = ask(refusing, JSON | {"Transfer-Encoding": "chunked"}, [b"x" * 6, b"x" * 6, b"x" * 6])
    assert (answer.status, answer.body) == (413, b"the body is larger than 10 bytes, the most that this server accepts")


def test_a_body_of_exactly_the_limit_passes() -> None:
    assert ask(echo, JSON | {"Content-Length": "10"}, [b"x" * 5, b"x" * 5]).body == b"x" * 10


@pytest.mark.parametrize("length", [{"Content-Length": "5"}, {"Transfer-Encoding": "chunked"}])
@pytest.mark.parametrize(
    "kind", [{}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "text/json"}]
)
def test_a_body_that_does_not_say_that_it_is_json(length: dict[str, str], kind: dict[str, str]) -> None:
    answer = ask(echo, kind | length, [b"12345"])
    assert (answer.status, answer.problem["type"]) == (415, "urn:kernelwright:error:not-json")


def test_no_body_needs_no_content_type() -> None:
    assert ask(echo, {"Content-Length": "0", "Content-Type": "application/x-www-form-urlencoded"}).status == 200
