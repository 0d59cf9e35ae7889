"""`Client`: each call waits for its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from cli.client.asking_calls import AskingCalls
from cli.client.calls import Blocking, Call, given
from cli.client.errors import ApiError, Unreachable, api_error, unreachable
from cli.client.export_calls import ExportCalls
from cli.client.following import PATIENCE_S, Trail, rest
from cli.client.job_calls import JobCalls
from cli.client.knowledge_calls import KnowledgeCalls
from cli.client.record_calls import RecordCalls
from cli.client.retries import Attempts, Outcome, Retry
from cli.client.service_calls import ServiceCalls
from cli.client.streams import EventLines
from cli.client.transport import STREAM_TIMEOUT, TIMEOUT_S, event_stream, headers_of, settled
from cli.client.types import Event
from cli.client.webhook_calls import WebhookCalls

T = TypeVar("T")


class Client(JobCalls, AskingCalls, RecordCalls, KnowledgeCalls, ServiceCalls, WebhookCalls, ExportCalls, Blocking):
    """A synchronous client of one API server. Not shared between threads.

    Every call raises an `ApiError` when the server answers with a problem, `Unreachable` when it does not answer; see
    `cli.client.errors`. What can be repeated is repeated first, as `retry` says. `transport` is for tests that speak to
    an application in the same process; so are `clock` and `sleep`.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout_s: float = TIMEOUT_S,
        transport: httpx2.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._retry, self._timeout_s = retry or Retry(), timeout_s
        self._clock, self._sleep = clock, sleep
        self._http = httpx2.Client(
            base_url=self.base_url, headers=headers_of(key), timeout=timeout_s, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def perform(self, call: Call[T]) -> T:
        """Make a call, again and again where that is worth it."""
        attempts = Attempts(self._retry, call)
        while True:
            try:
                outcome: Outcome = self._http.request(call.method, call.path, **call.options(self._timeout_s))
            except httpx2.TransportError as broken:
                outcome = broken
            pause_s = attempts.pause_s(outcome)
            if pause_s is None:
                return settled(call, outcome, self.base_url)
            self._sleep(pause_s)

    def get(self, path: str, **params: Any) -> Any:
        """Any other resource, as the API's JSON; parameters that are None are left out."""
        return self.perform(Call[Any]("GET", path, query=given(**params)))

    def stream(self, job_id: str, *, after: int = 0) -> Iterator[Event]:
        """A job's events as they happen, until the job ends. Raises `Unreachable` when the connection breaks: call
        again with `after` set to the last seq seen, and nothing is missed or repeated; `follow` does."""
        lines = EventLines()
        try:
            with self._http.stream(**event_stream(job_id, after), timeout=STREAM_TIMEOUT) as response:
                if response.is_error:
                    response.read()
                    raise api_error(response)
                for line in response.iter_lines():
                    event = lines.feed(line)
                    if event is not None:
                        yield event
        except httpx2.TransportError as broken:
            raise unreachable(self.base_url, broken) from broken

    def follow(self, job_id: str, *, after: int = 0, patience_s: float = PATIENCE_S) -> Iterator[Event]:
        """Each event above `after`, once and in order, until the job has ended, whatever happens to the connection.

        Raises Unreachable or ApiError when the server was away for `patience_s` seconds, NotFound when it does not know
        the job.
        """
        trail = Trail(after, patience_s, self._clock)
        while True:
            try:
                for event in self.stream(job_id, after=trail.last):
                    if trail.fresh(event):
                        yield event
                    if trail.over:
                        return
                trail.closed(self.job(job_id))
                if trail.over:
                    yield from self.carry_out(rest(job_id, trail.last))
                    return
            except (Unreachable, ApiError) as error:
                trail.broke(error)
            self._sleep(trail.pause_s())
