"""A scripted API for unit tests: the real `Client` and real HTTP messages, no socket; each answer is a response."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import httpx2

from cli.client import Client, Event, Job


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


class Broken(httpx2.SyncByteStream):
    """A stream of events that is cut off after them, as when the server is killed."""

    def __init__(self, *events: Event) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        yield stream_of(*self._events)
        raise httpx2.ReadError("connection reset")


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
        return answer

    def client(self) -> Client:
        return Client("http://api.example", transport=httpx2.MockTransport(self))

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
