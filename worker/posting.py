"""One attempt to send a webhook: resolve, look at the addresses, connect to one of those, sign, post, read a little.

Nothing is taken from the environment but where certificates lie: no proxy. A redirect is an answer like any other that
is no success. An attempt takes at most CONNECT_S and then ANSWER_S, however slowly the other side drips.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpcore2
from standardwebhooks import Webhook

from db import destinations
from db.destinations import Destination, Network, Refused
from db.outbox import Attempt, Sending

CONNECT_S: Final = 10.0
"""To resolve the name, connect and agree on TLS. The resolver has its own limits; what it takes is taken from this."""
ANSWER_S: Final = 10.0
"""From there until enough of the answer was read."""
READ_BYTES: Final = 4_096
USER_AGENT: Final = "kernelwright-webhooks"


class _Bounded(httpcore2.NetworkStream):
    """A stream whose reads and writes together end at a deadline: one limit for each would never end a slow drip."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Bounded(self._stream.start_tls(ssl_context, server_hostname, self._left(timeout)), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _left(self, timeout: float | None) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout(f"no whole answer within {ANSWER_S:g} s")
        return left if timeout is None else min(left, timeout)


class _Pinned(httpcore2.NetworkBackend):
    """Connects to the addresses that were looked at, whatever name is asked for: it is not resolved again."""

    def __init__(self, addresses: Sequence[str], connect_by: float) -> None:
        self._addresses = addresses
        self._connect_by = connect_by
        self._sockets = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        failure: Exception = httpcore2.ConnectTimeout(f"no connection within {CONNECT_S:g} s")
        for address in self._addresses:
            left = self._connect_by - time.monotonic()
            if left <= 0:
                break
            try:
                stream = self._sockets.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return _Bounded(stream, time.monotonic() + ANSWER_S)
        raise failure


def post(sending: Sending, allowed: Sequence[Network], now: datetime | None = None) -> Attempt:
    """Make one attempt; whatever goes wrong is in what it returns. `now` is what the signature says."""
    began_at = time.monotonic()
    now = now or datetime.now(UTC)
    try:
        destination = destinations.read_url(sending.url)
        found = destinations.resolve(destination.host, destination.port)
        addresses = destinations.usable(found, destination.scheme, allowed)
        body = json.dumps(sending.body, separators=(",", ":")).encode()
        headers = {"Host": destination.authority, **_headers(sending, body, now)}
        status, answer, retry_after = _exchange(destination, _Pinned(addresses, began_at + CONNECT_S), headers, body)
    except (Refused, OSError, httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        return Attempt(time.monotonic() - began_at, error=_words(error))
    return Attempt(
        time.monotonic() - began_at,
        status=status,
        answer=_readable(answer),
        error="redirects are not followed: change the URL" if 300 <= status < 400 else None,
        retry_after_s=_seconds(retry_after, now),
    )


def _headers(sending: Sending, body: bytes, now: datetime) -> dict[str, str]:
    """Standard Webhooks: while a secret is being changed, the signatures of both."""
    text = body.decode()
    signatures = " ".join(Webhook(secret).sign(sending.id, now, text) for secret in sending.secrets)
    return {
        "User-Agent": USER_AGENT,
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "webhook-id": sending.id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signatures,
    }


def _exchange(
    destination: Destination, backend: httpcore2.NetworkBackend, headers: dict[str, str], body: bytes
) -> tuple[int, bytes, str | None]:
    """Status, the beginning of the answer, and its Retry-After."""
    url = httpcore2.URL(
        scheme=destination.scheme.encode(),
        host=destination.host.encode(),
        port=destination.port,
        target=destination.target.encode(),
    )
    limits = {"timeout": {"connect": CONNECT_S, "read": ANSWER_S, "write": ANSWER_S, "pool": CONNECT_S}}
    with (
        httpcore2.ConnectionPool(network_backend=backend) as pool,
        pool.stream("POST", url, headers=list(headers.items()), content=body, extensions=limits) as response,
    ):
        answer = b""
        with suppress(httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError):
            # The status has come, and it is what counts: of a body that drips or breaks off, what came is kept.
            for chunk in response.iter_stream():
                answer += chunk
                if len(answer) >= READ_BYTES:
                    break
        retry_after = next((value for name, value in response.headers if name.lower() == b"retry-after"), None)
        return response.status, answer[:READ_BYTES], None if retry_after is None else retry_after.decode("latin-1")


def _readable(answer: bytes) -> str:
    text = answer.decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _seconds(retry_after: str | None, now: datetime) -> float | None:
    """`120`, or a date; None for what is neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        at = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return (at - now).total_seconds() if at.tzinfo is not None else None


def _words(error: Exception) -> str:
    said = str(error) or type(error).__name__
    return f"the URL {said}" if isinstance(error, Refused) else said
