"""What is too large, too deep, too slow or too much, sent over real sockets: each is a clear 4xx, and nothing waits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from api.connections import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES, BoundedProtocol
from api.middleware import MAX_BODY_BYTES
from cli.client import Job
from db import keys
from db.settings import Settings
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.server import serving

PATIENCE_S = 20.0
GET = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Hasty(BoundedProtocol):
    """The same bounds in times that a test can wait for."""

    head_s = 2.0
    body_s = 2.0


@pytest.fixture
def hasty_url(settings: Settings, bells: Bells) -> Iterator[str]:
    with serving(create_app(settings, ring=bells), Hasty) as url:
        yield url


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((str(parts.hostname), parts.port or 80), timeout=PATIENCE_S)


def read_all(connection: socket.socket) -> bytes:
    """Until the server ends the connection; fails when it does not."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass  # it was ended with something of ours unread
    return found


def answered(raw: bytes) -> tuple[int, dict[str, Any]]:
    """Status and document of the first answer."""
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def send(url: str, *parts: bytes) -> tuple[int, dict[str, Any]]:
    with closing(connect(url)) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break  # it has said no
        return answered(read_all(connection))


@pytest.mark.parametrize(
    ("parts", "status", "slug"),
    [
        ([b"GET /", b"x" * (MAX_TARGET_BYTES + 1), b" HTTP/1.1\r\n\r\n"], 414, "address-too-long"),
        ([b"GET /?", b"x" * (1 << 20)], 414, "address-too-long"),
        ([GET, b"".join(b"X-%d: 1\r\n" % n for n in range(MAX_HEADERS)), b"\r\n"], 431, "headers-too-large"),
        ([GET, b"X-Large: ", b"x" * MAX_HEAD_BYTES, b"\r\n\r\n"], 431, "headers-too-large"),
        ([GET, b"X-Endless: ", *[b"x" * 65536] * 16], 431, "headers-too-large"),
        ([GET, b"x" * (1 << 20)], 431, "headers-too-large"),
        ([b"GET /v1/jobs HTTP/1.1\r\nno header\r\n\r\n"], 400, "broken-request"),
        ([b"GET /v1/jobs HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"], 400, "broken-request"),
        ([b"\x16\x03\x01\x02\x00\x01\x00"], 400, "broken-request"),
        ([POST, b"Content-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1)], 413, "body-too-large"),
        ([POST, b"Content-Length: 99999999999999999999999\r\n\r\n"], 400, "broken-request"),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_read(url: str, parts: list[bytes], status: int, slug: str) -> None:
    found, document = send(url, *parts)
    assert (found, document["type"]) == (status, f"urn:kernelwright:error:{slug}")
    assert document["detail"] and document["request_id"].startswith("req_")


def test_a_body_of_unknown_size_is_read_up_to_the_bound(url: str) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    found, document = send(url, POST, b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n", *[chunk] * 40)
    assert (found, document["type"]) == (413, "urn:kernelwright:error:body-too-large")


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        ("[" * 500_000, 400, "broken-json"),
        ('{"a":' * 300_000, 400, "broken-json"),
        ("[" * 100_000 + "]" * 100_000, 400, "broken-json"),
        ('{"labels": ' + '{"a": ' * 200 + "1" + "}" * 200 + "}", 422, "invalid"),
        ("9" * 100_000, 400, "broken-json"),
        (json.dumps(BODY | {"problem": {"name": "own", "source": "#" * (1 << 20) + "\n"}}), 422, "invalid"),
        (json.dumps(BODY | {"labels": {str(number): "x" for number in range(33)}}), 422, "invalid"),
        (json.dumps(BODY | {"models": ["openai/x"] * 17}), 422, "invalid"),
    ],
)
def test_what_is_too_deep_or_too_much_is_refused(http: httpx2.Client, body: str, status: int, slug: str) -> None:
    answer = http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:kernelwright:error:{slug}"), answer.text[:300]


@pytest.mark.parametrize(
    "path", ["/v1/jobs?limit=100000", "/v1/jobs?wait=1&cursor=" + "x" * 5000, "/v1/candidates?limit=0"]
)
def test_no_page_is_larger_than_its_bound(http: httpx2.Client, path: str) -> None:
    assert http.get(path).status_code == 422


@pytest.mark.parametrize(
    "begun",
    [b"", b"\r\n", GET + b"X-Slow: a"],
    ids=["nothing", "a blank line", "half a header"],
)
def test_a_head_that_does_not_come_ends_the_connection(hasty_url: str, begun: bytes) -> None:
    found, document = send(hasty_url, begun)
    assert (found, document["type"]) == (408, "urn:kernelwright:error:request-too-slow")


def drip(connection: socket.socket, what: Callable[[], bytes]) -> bytes:
    """Send a little every 50 ms until the server ends the connection; what it said."""
    connection.settimeout(0.05)
    found = b""
    for _ in range(int(PATIENCE_S / 0.05)):
        try:
            connection.sendall(what())
            part = connection.recv(65536)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return found
        if not part:
            return found
        found += part
    raise AssertionError(f"the connection was never ended: {found!r}")


def test_a_head_that_drips_ends_the_connection(hasty_url: str) -> None:
    with closing(connect(hasty_url)) as connection:
        connection.sendall(GET)
        assert answered(drip(connection, lambda: b"X-Slow: 1\r\n"))[0] == 408


def test_a_body_that_drips_ends_the_connection(hasty_url: str) -> None:
    with closing(connect(hasty_url)) as connection:
        connection.sendall(POST + b"Content-Length: 100000\r\n\r\n")
        assert answered(drip(connection, lambda: b" "))[0] == 408


def test_a_body_that_nobody_reads_holds_no_connection(hasty_url: str) -> None:
    """It was answered long ago: uvicorn would read on as long as something comes."""
    with closing(connect(hasty_url)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 100000\r\n\r\n")
        assert drip(connection, lambda: b" ").startswith(b"HTTP/1.1 200")


def test_between_requests_blank_lines_hold_no_connection(hasty_url: str) -> None:
    with closing(connect(hasty_url)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert b" 408 " in drip(connection, lambda: b"\r\n")


def test_an_answer_that_takes_longer_than_the_head_may_is_waited_for(hasty_url: str, job: Job) -> None:
    """The bounds are for what the client sends. The next request is begun while it waits."""
    with closing(connect(hasty_url)) as connection:
        path = f"/v1/jobs/{job['id']}?wait=4&since_version={job['version'] + 99}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
        found = read_all(connection)
    assert found.startswith((b"HTTP/1.1 200", b"HTTP/1.1 304")) and found.count(b"HTTP/1.1 408") == 1


def test_a_key_holds_so_many_streams_and_no_more(
    settings: Settings, sessions: sessionmaker[Session], bells: Bells
) -> None:
    few = settings.model_copy(update={"streams_per_key": 2, "redis_url": SecretStr("unix:///none")})
    with sessions.begin() as session:
        tokens = [keys.create_key(session, name, {}) for name in ("one", "other")]
    one, other = ({"Authorization": f"Bearer {token}"} for token in tokens)
    with serving(create_app(few, ring=bells)) as url, httpx2.Client(base_url=url, timeout=PATIENCE_S) as http:
        path = f"/v1/jobs/{http.post('/v1/jobs', json=BODY, headers=one).json()['id']}/events"
        stream = {"Accept": "text/event-stream"}
        with ExitStack() as stack:

            def open_stream(headers: dict[str, str]) -> httpx2.Response:
                answer = stack.enter_context(http.stream("GET", path, headers=headers | stream))
                # Kept, since a stream that nobody holds is closed; the first event says that it has begun.
                kept.append(answer.iter_bytes())
                assert next(kept[-1])
                return answer

            kept: list[Iterator[bytes]] = []
            assert [open_stream(one).status_code for _ in range(2)] == [200, 200]
            refused = open_stream(one)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
            assert [open_stream(each).status_code for each in (other, {})] == [200, 200]
            assert http.get(path, headers=one).status_code == 200, "a page is no stream"
        _until_one_more(http, path, one | stream)


def _until_one_more(http: httpx2.Client, path: str, headers: dict[str, str]) -> None:
    """Those that have ended do not count; the server sees their end when it next writes."""
    for _ in range(200):
        with http.stream("GET", path, headers=headers) as answer:
            if answer.status_code == 200:
                return
            answer.read()
    raise AssertionError("streams that have ended still count")
