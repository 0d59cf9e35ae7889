"""`AsyncClient`: the same calls, to be awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from cli.client.asking_calls import AskingCalls
from cli.client.calls import Awaiting, Call, given
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


class AsyncClient(
    JobCalls, AskingCalls, RecordCalls, KnowledgeCalls, ServiceCalls, WebhookCalls, ExportCalls, Awaiting
):
    """An asynchronous client of one API server; many tasks of one event loop may share it.

    async with AsyncClient("http://127.0.0.1:8080") as client:
        job = await client.submit({"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}})
        async for event in client.follow(job["id"]):
            ...

    Its calls, errors and retries are those of `Client`.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        *,
        retry: Retry | None = None,
        timeout_s: float = TIMEOUT_S,
        transport: httpx2.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._retry, self._timeout_s = retry or Retry(), timeout_s
        self._clock, self._sleep = clock, sleep
        self._http = httpx2.AsyncClient(
            base_url=self.base_url, headers=headers_of(key), timeout=timeout_s, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def perform(self, call: Call[T]) -> T:
        """Make a call, again and again where that is worth it."""
        attempts = Attempts(self._retry, call)
        while True:
            try:
                outcome: Outcome = await self._http.request(call.method, call.path, **call.options(self._timeout_s))
            except httpx2.TransportError as broken:
                outcome = broken
            pause_s = attempts.pause_s(outcome)
            if pause_s is None:
                return settled(call, outcome, self.base_url)
            await self._sleep(pause_s)

    async def get(self, path: str, **params: Any) -> Any:
        """Any other resource, as the API's JSON; parameters that are None are left out."""
        return await self.perform(Call[Any]("GET", path, query=given(**params)))

    async def stream(self, job_id: str, *, after: int = 0) -> AsyncGenerator[Event]:
        """A job's events as they happen, until the job ends; see `Client.stream`."""
        lines = EventLines()
        try:
            async with self._http.stream(**event_stream(job_id, after), timeout=STREAM_TIMEOUT) as response:
                if response.is_error:
                    await response.aread()
                    raise api_error(response)
                async for line in response.aiter_lines():
                    event = lines.feed(line)
                    if event is not None:
                        yield event
        except httpx2.TransportError as broken:
            raise unreachable(self.base_url, broken) from broken

    async def follow(self, job_id: str, *, after: int = 0, patience_s: float = PATIENCE_S) -> AsyncGenerator[Event]:
        """Each event above `after`, once and in order, until the job has ended; see `Client.follow`."""
        trail = Trail(after, patience_s, self._clock)
        while True:
            try:
                async with aclosing(self.stream(job_id, after=trail.last)) as events:
                    async for event in events:
                        if trail.fresh(event):
                            yield event
                        if trail.over:
                            return
                trail.closed(await self.job(job_id))
                if trail.over:
                    for event in await self.carry_out(rest(job_id, trail.last)):
                        yield event
                    return
            except (Unreachable, ApiError) as error:
                trail.broke(error)
            await self._sleep(trail.pause_s())
