"""What surrounds every request: its id, the checks that come before anything is parsed, and the last resort.

One ASGI layer instead of the framework's own body limit and error page, because those answer in plain text, and because
a 415 has to be said before the framework parses a form as if it were a broken job.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import spans
from api.errors import ApiError, BodyTooLarge, Internal, NotJson
from api.handlers import answer
from db.tracing import Span

MAX_BODY_BYTES = 2 << 20
"""Room for a problem file of 1 MiB with every character escaped once, as JSON writes newlines and quotes."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FORM = "application/x-www-form-urlencoded"
_QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})

Served = Callable[[Scope, int | None, float | None], None]
"""Told of each request: its scope, its status, and the seconds until its answer began; None: nothing was answered."""

log = structlog.get_logger("api")


class FrontMiddleware:
    """Gives each request an id, refuses unusable bodies, turns what nobody caught into a 500 without its innards."""

    def __init__(self, app: ASGIApp, max_body_bytes: int = MAX_BODY_BYTES, served: Served | None = None) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        named = structlog.contextvars.bound_contextvars(request_id=request_id)
        with named, spans.serving(scope, Headers(scope=scope), request_id) as span:
            exchange = _Exchange(scope, send, request_id, span)
            try:
                await self._serve(scope, self._limited(receive), exchange)
                exchange.log()
            finally:
                if self._served is not None:
                    self._served(scope, exchange.status, exchange.answered_s)

    async def _serve(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        try:
            _check_headers(scope["path"], Headers(scope=scope), self._max_body_bytes)
            await self._app(scope, receive, exchange.send)
        except ApiError as error:
            await exchange.answer(receive, error)
        except ClientDisconnect:
            log.info("request.abandoned", method=scope["method"], path=scope["path"])
        except Exception:
            # The API's boundary: the trace goes to the log, never to the client.
            log.exception("request.failed", method=scope["method"], path=scope["path"])
            if exchange.status is not None:
                raise  # half an answer is out: only cutting the connection tells the client that it is not whole
            await exchange.answer(receive, Internal())

    def _limited(self, receive: Receive) -> Receive:
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_body_bytes:
                # The framework passes an HTTPException on where it would wrap any other as "error parsing the body".
                raise HTTPException(413, _too_large(self._max_body_bytes))
            return message

        return limited


class _Exchange:
    """One request and its answer: adds X-Request-Id, remembers the status."""

    def __init__(self, scope: Scope, send: Send, request_id: str, span: Span | None) -> None:
        self.status: int | None = None
        self.answered_s: float | None = None
        """Until the answer began."""
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._span = span
        self._began = time.perf_counter()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.answered_s = time.perf_counter() - self._began
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._request_id
            # Sources and logs are other people's text; no browser shall take them for a page.
            headers["X-Content-Type-Options"] = "nosniff"
            if self._span is not None:
                spans.answered(self._span, self._scope, message["status"])
        await self._send(message)

    async def answer(self, receive: Receive, error: ApiError) -> None:
        await answer(Request(self._scope), error)(self._scope, receive, self.send)

    def log(self) -> None:
        if self._scope["path"] in _QUIET_PATHS and self.status == 200:
            return
        wall_ms = round((time.perf_counter() - self._began) * 1e3, 1)
        path = self._scope["path"]
        # By these fields the lines of a job are found, whatever its path was.
        named = self._scope.get("path_params", {})
        ids = {name: named[name] for name in ("job_id", "candidate_id") if name in named}
        # Polls that find nothing new are most requests of a service that is watched.
        say = log.debug if self.status == 304 else log.info
        say("request.served", method=self._scope["method"], path=path, status=self.status, wall_ms=wall_ms, **ids)


def _request_id(headers: Headers) -> str:
    """The client's own id when it is one that can go into a log line, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(8)}"


def _check_headers(path: str, headers: Headers, max_body_bytes: int) -> None:
    declared = headers.get("content-length", "")
    size = int(declared) if declared.isdigit() else 0
    if size > max_body_bytes:
        # The body stays unread, so this connection cannot carry another request.
        raise BodyTooLarge(_too_large(max_body_bytes), headers={"Connection": "close"})
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    # The forms of the web page are at addresses of their own: a form sent to /v1 stays a broken job.
    form = media_type == _FORM and not path.startswith("/v1/")
    if (size or "transfer-encoding" in headers) and not form and not _is_json(media_type):
        raise NotJson


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _too_large(max_body_bytes: int) -> str:
    return f"the body is larger than {max_body_bytes} bytes, the most that this server accepts"
