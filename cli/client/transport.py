"""What both clients tell httpx, and what they make of its outcome."""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

import httpx2

from cli.client.calls import Call
from cli.client.errors import api_error, unreachable
from cli.client.retries import Outcome

T = TypeVar("T")

TIMEOUT_S: Final = 15.0
"""For an answer that is not held back; a long-poll adds its own time."""
# The server sends a keepalive comment every 15 s, so a minute of silence on a stream means that it is gone.
STREAM_TIMEOUT: Final = httpx2.Timeout(TIMEOUT_S, read=60.0)


def headers_of(key: str | None) -> dict[str, str]:
    """The headers of every request."""
    headers = {"User-Agent": "kernelwright-cli"}
    return headers if key is None else headers | {"Authorization": f"Bearer {key}"}


def event_stream(job_id: str, after: int) -> dict[str, Any]:
    """The request for a job's events after a seq, as httpx's `stream` takes it."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    return {"method": "GET", "url": f"/v1/jobs/{quote(job_id, safe='')}/events", "headers": headers}


def settled(call: Call[T], outcome: Outcome, base_url: str) -> T:
    """The call's answer. Raises ApiError or Unreachable."""
    if isinstance(outcome, httpx2.TransportError):
        raise unreachable(base_url, outcome) from outcome
    if outcome.is_error:
        raise api_error(outcome)
    return cast(T, call.read(outcome))
