"""The span of a request: by its route's template, below the client's own where that sent a `traceparent`.

It ends where the answer begins. So an event stream is a short span however long it is read, and a long-poll lasts as
long as it was held, a minute at most. Probes and scrapes are not traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from api.metrics import METHODS
from db import tracing
from db.tracing import Span

UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})


@contextmanager
def serving(scope: Scope, headers: Headers, request_id: str) -> Iterator[Span | None]:
    """A span around a request; None where it is not traced. Whoever answers says so by `answered`."""
    if not tracing.on() or scope["path"] in UNTRACED:
        yield None
        return
    named = {"http.request.method": _method(scope) or "_OTHER", "kernelwright.request.id": request_id}
    with tracing.span(_name(scope), named, kind="server", headers=headers) as span:
        yield span


def answered(span: Span, scope: Scope, status: int) -> None:
    """The answer begins."""
    route = getattr(scope.get("route"), "path", None)
    span.rename(_name(scope, route))
    ids = scope.get("path_params", {})
    span.note(
        {
            "http.route": route,
            "http.response.status_code": status,
            "kernelwright.job.id": ids.get("job_id"),
            "kernelwright.candidate.id": ids.get("candidate_id"),
        }
    )
    if status >= 500:
        span.fail(str(status))
    span.end()


def _name(scope: Scope, route: str | None = None) -> str:
    """Addresses that lead nowhere and unknown methods stay out of the names: anybody can invent one."""
    method = _method(scope) or "HTTP"
    return method if route is None else f"{method} {route}"


def _method(scope: Scope) -> str | None:
    return scope["method"] if scope["method"] in METHODS else None
