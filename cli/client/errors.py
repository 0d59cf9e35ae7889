"""What a call of the client can raise.

ClientError
├── Unreachable          no answer: nobody listens there, or the answer never came
└── ApiError             an answer that says no: status, title, detail and the fields at fault
    ├── NotAllowed       401, 403   no key, an unknown or ended one, or one without the scope
    ├── NotFound         404        no such job, candidate, problem; or nothing to show of it yet
    ├── Conflict         409        it is too late for that, or somebody was first
    ├── Invalid          400, 413, 415, 422   the request cannot be used; `errors` points at the fields
    ├── TooManyRequests  429        `retry_after_s` says when to come back
    └── ServerError      5xx        the service itself is in trouble, or what stands before it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

from cli.client.types import FieldError


class ClientError(Exception):
    """The call to the Kernelwright API failed."""


class Unreachable(ClientError):
    """No answer from the API. Is it running (`kernelwright up`), and is the URL right?"""

    def __init__(self, base_url: str, why: str) -> None:
        super().__init__(f"no answer from {base_url} ({why}); is it running (`kernelwright up`), and is the URL right?")
        self.base_url = base_url


class ApiError(ClientError):
    """The API answered with a problem: `str(error)` is its detail with the fields at fault, ready to show."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        self.status = status
        self.problem = dict(problem)
        self.type: str = str(problem.get("type", "about:blank"))
        self.title: str = str(problem.get("title", f"HTTP {status}"))
        self.detail: str = str(problem.get("detail") or self.title)
        self.request_id: str | None = problem.get("request_id")
        self.errors: list[FieldError] = list(problem.get("errors") or [])
        self.retry_after_s = retry_after_s
        # The detail of a 422 names the first few fields already.
        named = [f"{error['pointer']}: {error['detail']}" for error in self.errors]
        super().__init__("\n  ".join([self.detail, *(each for each in named if each not in self.detail)]))


class NotAllowed(ApiError):
    """The key, or the lack of one, does not allow this."""


class NotFound(ApiError):
    """There is no such thing, or nothing to show of it yet."""


class Conflict(ApiError):
    """What is there now does not allow it: it ended, or somebody was first."""


class Invalid(ApiError):
    """The request cannot be used as it is; sending it again changes nothing."""


class TooManyRequests(ApiError):
    """More than the key may send or hold now."""


class ServerError(ApiError):
    """The service, or something between us and it, is in trouble."""


_KINDS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: TooManyRequests,
}


def api_error(response: httpx2.Response) -> ApiError:
    """The error that an answer is. Its body has been read."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        # Something between us and the API answered: a proxy's page has no problem document.
        problem = {"detail": f"HTTP {response.status_code} without a problem document: {response.text[:200]!r}"}
    kind = ServerError if response.status_code >= 500 else _KINDS.get(response.status_code, ApiError)
    return kind(response.status_code, problem, retry_after(response))


def unreachable(base_url: str, error: httpx2.TransportError) -> Unreachable:
    """The error that a broken connection is, with its cause."""
    made = Unreachable(base_url, str(error) or type(error).__name__)
    made.__cause__ = error
    return made


def retry_after(response: httpx2.Response) -> float | None:
    """The seconds of a Retry-After header; None without one, and for a date, which this service never sends."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None
