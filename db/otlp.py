"""OpenTelemetry behind `db.tracing`: one provider for a process, which sends batches by OTLP over HTTP.

The endpoint is ours to say (KERNELWRIGHT_OTLP_ENDPOINT); all else are the standard variables, which the library reads:
OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _COMPRESSION and _TIMEOUT, OTEL_TRACES_SAMPLER and its _ARG, OTEL_BSP_*,
OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME, OTEL_SDK_DISABLED.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Final

import structlog
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from db.tracing import Attributes, Kind, Run, Span, Value

STOP_S: Final = 2.0
"""For the last spans of a process: a dead collector must not hold up its end."""
DELAY_MS: Final = 1000.0
"""So old gets what waits to be sent, unless OTEL_BSP_SCHEDULE_DELAY says otherwise: a kill -9 costs that much."""
_KINDS: Final[Mapping[Kind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "consumer": SpanKind.CONSUMER,
}
_W3C: Final = TraceContextTextMapPropagator()
_EXPORTS: Final = logging.getLogger(OTLPSpanExporter.__module__)

log = structlog.get_logger(__name__)


class Tracer:
    """Makes the spans of one process. Never raises, and never waits, for what the collector does."""

    def __init__(self, endpoint: str, service: str) -> None:
        # Its own lines come for every try and every span that is dropped, and quote what they complain of.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        _EXPORTS.setLevel(logging.WARNING)
        _EXPORTS.propagate = False
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False, id_generator=_Ids())
        delay_ms = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else DELAY_MS
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter(endpoint), schedule_delay_millis=delay_ms))
        self._tracer = self._provider.get_tracer("kernelwright")

    @contextmanager
    def span(
        self, name: str, attributes: Attributes, kind: Kind, headers: Mapping[str, str] | None, run: Run | None
    ) -> Iterator[Span]:
        """See `db.tracing.span`."""
        opened = self._placed(name, kind, run) if run is not None else self._below(name, kind, headers)
        span = _Span(opened)
        span.note(attributes)
        token = contexts.attach(trace.set_span_in_context(opened))
        try:
            yield span
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            contexts.detach(token)
            span.end()

    def past(self, name: str, began_at: float, wall_s: float) -> None:
        """See `db.tracing.past`."""
        began_ns = int(began_at * 1e9)
        span = self._tracer.start_span(name, start_time=began_ns)
        span.end(began_ns + int(wall_s * 1e9))

    def current(self) -> Span:
        """The span that is open here; where there is none, one that drops what it is told."""
        return _Span(trace.get_current_span())

    def traceparent(self) -> str | None:
        """See `db.tracing.traceparent`."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get("traceparent")

    def ids(self) -> dict[str, str]:
        """What a log line says of the span that is open here."""
        here = trace.get_current_span().get_span_context()
        if not here.is_valid:
            return {}
        return {"trace_id": trace.format_trace_id(here.trace_id), "span_id": trace.format_span_id(here.span_id)}

    def close(self) -> None:
        """Send what is left, for STOP_S at most."""
        # The library waits for 30 s, or for as long as a try takes. What is not sent by then is lost with the thread.
        sending = threading.Thread(target=self._provider.shutdown, name="traces-last", daemon=True)
        sending.start()
        sending.join(STOP_S)

    def _below(self, name: str, kind: Kind, headers: Mapping[str, str] | None) -> trace.Span:
        above = None if headers is None else _W3C.extract(headers, Context())
        return self._tracer.start_span(name, above, _KINDS[kind])

    def _placed(self, name: str, kind: Kind, run: Run) -> trace.Span:
        above = _W3C.extract({"traceparent": run.traceparent} if run.traceparent else {}, Context())
        parent = trace.get_current_span(above).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else _number(run.job_id, 16)
        links = [_link(trace_id, _span_id(run, run.number - 1))] if run.number > 1 else []
        token = _ids.set((trace_id, _span_id(run, run.number)))
        try:
            return self._tracer.start_span(name, above, _KINDS[kind], links=links)
        finally:
            _ids.reset(token)


class _Span(Span):
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes({name: _plain(value) for name, value in attributes.items() if value is not None})

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()


_ids: ContextVar[tuple[int, int] | None] = ContextVar("ids of the next span", default=None)


class _Ids(RandomIdGenerator):
    """Random ids, or those that were chosen for the next span."""

    def generate_trace_id(self) -> int:
        chosen = _ids.get()
        return super().generate_trace_id() if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        chosen = _ids.get()
        return super().generate_span_id() if chosen is None else chosen[1]


def _span_id(run: Run, number: int) -> int:
    return _number(f"{run.work_id} {number}", 8)


def _number(name: str, size: int) -> int:
    """An id that everybody derives from the same name. Samplers want it to look random."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:size])


def _link(trace_id: int, span_id: int) -> Link:
    return Link(SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))


def _plain(value: Value) -> str | bool | int | float | list[str]:
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, str) else value  # a word of the vocabulary is an enum too


class _Exporter(SpanExporter):
    """Sends batches from the processor's own thread. What takes longer than OTEL_EXPORTER_OTLP_TIMEOUT is lost."""

    def __init__(self, endpoint: str) -> None:
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
        self._complaints = _Complaints(endpoint)
        _EXPORTS.addHandler(self._complaints)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """One batch."""
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._complaints.over()
        return result

    def shutdown(self) -> None:
        """End a retry that is under way."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library gives it no types
        _EXPORTS.removeHandler(self._complaints)


class _Complaints(logging.Handler):
    """What the library logs at every try, as one line when that begins and one when it is over."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._begun = False

    def emit(self, record: logging.LogRecord) -> None:
        """The first is passed on."""
        if not self._begun:
            self._begun = True
            log.warning("traces.not_sent", endpoint=self._endpoint, why=record.getMessage())

    def over(self) -> None:
        """A batch was taken."""
        if self._begun:
            self._begun = False
            log.info("traces.sent_again", endpoint=self._endpoint)
