"""Connections with bounds: uvicorn's own protocol takes a request's head of any size, and waits for it for ever.

The bounds of the head are kept here, before anything of a request is routed, and the time for the body too; its size is
`api.middleware`'s. A refusal ends the connection: what follows on it cannot be told apart.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from enum import Enum, auto
from typing import Any, Final

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api.errors import MEDIA_TYPE, ApiError

MAX_TARGET_BYTES: Final = 8 << 10
"""Of path and query."""
MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 64 << 10
"""Of the target and all headers together."""
HEAD_S: Final = 10.0
"""From the connection, or from a further request's first byte, to the end of its head."""
BODY_S: Final = 60.0
"""From there to the end of the body: 2 MiB at 35 kB/s."""

log = structlog.get_logger("api")


class BrokenRequest(ApiError):
    """This is no request in HTTP/1.1."""

    status = 400
    title = "Broken request"
    slug = "broken-request"


class RequestTooSlow(ApiError):
    """The request did not come in time: its head may take ten seconds, and its body a minute."""

    status = 408
    title = "Request too slow"
    slug = "request-too-slow"


class TargetTooLong(ApiError):
    """The address with its query is longer than 8 KiB."""

    status = 414
    title = "Address too long"
    slug = "address-too-long"


class HeadTooLarge(ApiError):
    """The request has more than 100 headers, or more than 64 KiB of them."""

    status = 431
    title = "Headers too large"
    slug = "headers-too-large"


class _At(Enum):
    """How far the parser is in what came."""

    REST = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """Speaks HTTP/1.1 with whoever keeps the bounds, and ends the connections of others with a word why."""

    head_s = HEAD_S
    body_s = BODY_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._at = _At.REST
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._refusal: type[ApiError] = BrokenRequest
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._due_in(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._due_in(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self._at is _At.REST:
            self._due_in(self.head_s)  # even if it is only the blank lines that may stand before a request
        super().data_received(data)
        # The parser hands a header on when it has all of it: one that never ends is only counted here.
        self._unparsed_bytes += len(data) if self._at is _At.HEAD else 0
        if self._unparsed_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HeadTooLarge)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._at, self._head_bytes, self._unparsed_bytes = _At.HEAD, 0, 0
        if self._deadline is None:
            self._due_in(self.head_s)  # it came together with the one before it

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._stop_parsing(TargetTooLong)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            self._stop_parsing(HeadTooLarge)

    def on_headers_complete(self) -> None:
        self._at, self._unparsed_bytes = _At.BODY, 0
        self._due_in(self.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._at = _At.REST
        # Answered before it had all come: uvicorn would wait for another request for ever.
        self._due_in(None if self._answering else self.head_s)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser did not take, for its form or for our bounds."""
        self._refuse(self._refusal)

    def _stop_parsing(self, why: type[ApiError]) -> None:
        self._refusal = why
        raise why

    def _due_in(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._at is not _At.BODY and self._answering:
            self._due_in(self.head_s)  # the request before this one takes its time: that is ours
        else:
            self._refuse(RequestTooSlow)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, why: type[ApiError]) -> None:
        """End the connection, with the reason where it cannot be taken for part of another answer."""
        error = why()
        request_id = f"req_{secrets.token_hex(8)}"
        log.info("connection.refused", status=error.status, request_id=request_id)
        # A body that never ends has a cycle of its own, which may have answered.
        begun = self.cycle is not None and self.cycle.response_started and (self._answering or self._at is _At.BODY)
        if not begun:
            body = json.dumps(error.document("", request_id)).encode()
            headers = {"content-type": MEDIA_TYPE, "content-length": len(body), "connection": "close"}
            lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        self.transport.close()
