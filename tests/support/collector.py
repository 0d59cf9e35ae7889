"""A collector of traces on loopback: it takes what real exporters send by OTLP over HTTP, and decodes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as RawSpan

KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


@dataclass(frozen=True)
class Seen:
    """A span that arrived."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """Span ids."""
    events: int

    @property
    def wall_s(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9

    def within(self, other: Seen, slack_s: float = 0.01) -> bool:
        """Whether it lies in the other one's time."""
        slack = slack_s * 1e9
        return self.began_ns >= other.began_ns - slack and self.ended_ns <= other.ended_ns + slack


class Collector:
    """The server; `seen` are the spans that arrived, in the order in which they did."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if not collector._listens:  # a connection that was made before
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = collector._take(self.path, body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        self._handler = Handler
        self._server = self._listening(0)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._serve()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody listens meanwhile."""
        port = self._server.server_port
        self._close()
        yield
        self._server = self._listening(port)
        self._serve()

    def _listening(self, port: int) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        server.daemon_threads = True
        return server

    def _serve(self) -> None:
        self._listens = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _close(self) -> None:
        self._listens = False
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        if path != "/v1/traces":
            return 404
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes)["service.name"]
                self.seen += [_seen(service, span) for scope in resource.scope_spans for span in scope.spans]
        return 200

    def spans(self, **like: Any) -> list[Seen]:
        """Those with these values, such as `name="evaluate"`, by when they began."""
        with self._lock:
            found = [span for span in self.seen if all(getattr(span, name) == value for name, value in like.items())]
        return sorted(found, key=lambda span: span.began_ns)

    def of_job(self, job_id: str) -> list[Seen]:
        """All spans of the trace in which this job is, by when they began."""
        named = {span.trace_id for span in self.spans() if span.attributes.get("kernelwright.job.id") == job_id}
        return [span for span in self.spans() if span.trace_id in named]

    def wait_for(self, enough: Callable[[], bool], patience_s: float = 30) -> None:
        """Until enough has arrived, or fail the test with what has."""
        deadline = time.monotonic() + patience_s
        while not enough():
            assert time.monotonic() < deadline, [(span.service, span.name, span.attributes) for span in self.spans()]
            time.sleep(0.02)


def _seen(service: str, span: RawSpan) -> Seen:
    return Seen(
        service=service,
        name=span.name,
        kind=KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        failed=span.status.code == 2,
        attributes=_attributes(span.attributes),
        links=tuple(link.span_id.hex() for link in span.links),
        events=len(span.events),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))
