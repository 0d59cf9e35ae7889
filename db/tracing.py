"""Traces, where KERNELWRIGHT_OTLP_ENDPOINT is set: all that other modules know of OpenTelemetry.

    tracing.start(settings, "kernelwright-api")          once in a process; imports OpenTelemetry only now
    with tracing.span("build"):                          a child of whatever span is open here
        tracing.note({"kernelwright.verdict": "ok"})
    tracing.stop()

Where no endpoint is set all of this does nothing, and nothing that makes or sends spans is imported. Spans carry ids,
words of the vocabulary and numbers; never a source, a prompt, an answer, a log or the text of an exception, which may
quote them. They are made by hand at our own seams: an instrumentation of Celery would follow doorbells, which say
nothing of the work that is then claimed, one of psycopg would make dozens of spans for each advance, and FastAPI's own
would keep a span open for as long as somebody reads an event stream, and can record bodies.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from db.settings import Settings, SettingsError

if TYPE_CHECKING:
    from db.otlp import Tracer

Kind = Literal["internal", "server", "client", "consumer"]
Value = str | bool | int | float | Decimal | list[str]
Attributes = Mapping[str, Value | None]
"""By their full names; what is None is left out."""


class TelemetryMissing(SettingsError):
    """KERNELWRIGHT_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: pip install 'kernelwright[telemetry]', or
    unset it."""

    def __str__(self) -> str:
        return " ".join(str(self.__doc__).split())


@dataclass(frozen=True, slots=True)
class Run:
    """A unit of work, taken up for the `number`-th time: what places its span in the trace of its job.

    Trace and span ids follow from these names where nothing says otherwise, so that workers that know nothing of each
    other agree on them: on the trace of a job that was submitted without one, and on the span of the run before.
    """

    job_id: str
    work_id: str
    number: int
    traceparent: str | None = None
    """Of the request that submitted the job."""


class Span:
    """A span, or nothing: this one drops what it is told."""

    def rename(self, name: str) -> None:
        """The name, when it is known at last."""

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""

    def fail(self, kind: str) -> None:
        """It failed; `kind` is a word for how: the name of an exception's type, a status."""

    def end(self) -> None:
        """It is over now, although the block goes on."""


_NOTHING = Span()
_tracer: Tracer | None = None


def check(settings: Settings) -> None:
    """Raises TelemetryMissing when traces are asked for that cannot be made. Imports nothing where they are not."""
    if settings.otlp_endpoint and not _installed():
        raise TelemetryMissing


def _installed() -> bool:
    try:
        return all(map(importlib.util.find_spec, ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        return False


def start(settings: Settings, service: str) -> None:
    """Trace from now on, if an endpoint is set; a second call changes nothing. Call it after any fork.

    Raises TelemetryMissing.
    """
    global _tracer
    if not settings.otlp_endpoint or _tracer is not None:
        return
    check(settings)
    from db.otlp import Tracer

    _tracer = Tracer(settings.otlp_endpoint, service)


def stop() -> None:
    """Send what is left, for 2 s at most, and trace no more."""
    global _tracer
    stopped, _tracer = _tracer, None
    if stopped is not None:
        stopped.close()


def on() -> bool:
    """Whether this process traces."""
    return _tracer is not None


@contextmanager
def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: Kind = "internal",
    headers: Mapping[str, str] | None = None,
    run: Run | None = None,
) -> Iterator[Span]:
    """A span around the block: below the one that is open here, below what `headers` say, or where `run` belongs.

    An exception that leaves the block fails it, by its type alone.
    """
    tracer = _tracer  # once: another thread may stop it meanwhile
    if tracer is None:
        yield _NOTHING
        return
    with tracer.span(name, attributes or {}, kind, headers, run) as opened:
        yield opened


def past(name: str, began_at: float, wall_s: float) -> None:
    """A span of what is over already, from its numbers: seconds since the epoch, and how long it took."""
    if (tracer := _tracer) is not None:
        tracer.past(name, began_at, wall_s)


def note(attributes: Attributes) -> None:
    """Add attributes to the span that is open here."""
    if (tracer := _tracer) is not None:
        tracer.current().note(attributes)


def fail(kind: str) -> None:
    """The span that is open here failed; `kind` as in `Span.fail`."""
    if (tracer := _tracer) is not None:
        tracer.current().fail(kind)


def traceparent() -> str | None:
    """The span that is open here, as others continue it (W3C Trace Context)."""
    return None if (tracer := _tracer) is None else tracer.traceparent()


def add_ids(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: `trace_id` and `span_id` of the span that is open here."""
    if (tracer := _tracer) is not None:
        event.update(tracer.ids())
    return event
