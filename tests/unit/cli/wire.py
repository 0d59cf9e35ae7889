"""A scripted API for unit tests: the real clients and real HTTP messages, no socket; each answer is a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import httpx2

from cli.client import NO_RETRY, AsyncClient, Client, Event, Job


def event(seq: int, kind: str, **data: Any) -> Event:
    return Event(seq=seq, job_id="job_1", type=kind, at="2026-11-21T12:00:00Z", data=data)


def job(**changes: Any) -> Job:
    whole: dict[str, Any] = {
        "id": "job_1",
        "problem": {"name": "softmax", "hash": "ab"},
        "target": {"hardware": "cpu", "language": "cpp"},
        "budget": {"candidates": 20, "usd": None, "wall_s": None, "gpu_s": None},
        "stop": {"target_speedup": None, "stagnation": None},
        "models": [],
        "labels": {},
        "priority": 0,
        "seed": 0,
        "parent_id": None,
        "state": "running",
        "stop_reason": None,
        "error": None,
        "progress": {
            "candidates": {"evaluated": 3, "rejected": 1},
            "verdicts": {"ok": 2, "incorrect": 1, "timeout": 0},
        },
        "queue": {"position": None},
        "best": None,
        "cost": {"llm_usd": "0.12", "gpu_s": 4.0},
        "created_at": "2026-11-21T12:00:00Z",
        "started_at": "2026-11-21T12:00:01Z",
        "finished_at": None,
        "version": 3,
        "links": {},
    }
    return cast(Job, whole | changes)


BEST = {"candidate_id": "cand_1", "speedup": 1.834, "latency_us": 12.34, "ci95": [1.80, 1.87], "baseline": "compile"}


class Broken(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A stream of events that is cut off after them, as when the server is killed."""

    def __init__(self, *events: Event) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        yield stream_of(*self._events)
        raise httpx2.ReadError("connection reset")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for each in self:
            yield each


class Wire:
    """Answers the requests in order and keeps them; a request too many is an error."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        assert self._answers, f"one request too many: {request.method} {request.url}"
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer.stream, Broken):
            return answer
        # A client wraps the stream of what it got, so that a response can be given away only once.
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def client(self, **options: Any) -> Client:
        return Client("http://api.example", transport=httpx2.MockTransport(self), **{"retry": NO_RETRY, **options})

    def async_client(self, **options: Any) -> AsyncClient:
        transport = httpx2.MockTransport(self)
        return AsyncClient("http://api.example", transport=transport, **{"retry": NO_RETRY, **options})

    @property
    def unused(self) -> int:
        return len(self._answers)


def stream_of(*events: Event) -> bytes:
    return b"".join(f"id: {each['seq']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def streamed(*events: Event) -> httpx2.Response:
    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=stream_of(*events))


def cut_off(*events: Event) -> httpx2.Response:
    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Broken(*events))


def answered(value: Any, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, json=value)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses_s.append(pause_s)

    async def asleep(self, pause_s: float) -> None:
        self.sleep(pause_s)


Says = Callable[..., Any]
"""Makes a call with one of the two clients: `says(wire, lambda client: client.job("job_1"), time)`."""


def by_client(wire: Wire, call: Callable[[Any], Any], time: Time | None = None, **options: Any) -> Any:
    """The call's answer, from a `Client`; the whole list, where it gives an iterator."""
    time = time or Time()
    with wire.client(clock=time.clock, sleep=time.sleep, **options) as client:
        made = call(client)
        return list(made) if isinstance(made, Iterator) else made


def by_async_client(wire: Wire, call: Callable[[Any], Any], time: Time | None = None, **options: Any) -> Any:
    """The same from an `AsyncClient`."""
    time = time or Time()

    async def run() -> Any:
        async with wire.async_client(clock=time.clock, sleep=time.asleep, **options) as client:
            made = call(client)
            return [each async for each in made] if isinstance(made, AsyncIterator) else await made

    return asyncio.run(run())


BOTH = [by_client, by_async_client]
