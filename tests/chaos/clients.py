"""Clients of the fleet: they submit, follow, poll and cancel over raw HTTP, and write down all that they are told.

They know nothing of the service but its documentation: idempotency keys, Last-Event-ID, terminal states. Whatever fails
is asked again at the other API, as a client in production would.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx2

from tests.chaos.journal import Journal
from tests.chaos.provider import PROBLEM

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
RETRY_S = 0.5
ANSWER_S = 10.0
SILENCE_S = 40.0
"""A stream that says nothing for so long (keepalives come each 15 s) is taken for dead."""
SLOW_S = 0.7

Body = dict[str, Any]


def body(candidates: int, model: str, number: int, **budget: Any) -> Body:
    """A submission that the fleet can work on."""
    return {
        "admit": False,
        "certify": False,
        "problem": {"name": "doubled", "source": PROBLEM},
        "target": {"hardware": "cpu", "language": "cpp"},
        "budget": {"candidates": candidates, **budget},
        "models": [model],
        "labels": {"number": str(number)},
    }


class Clients:
    """Keeps so many jobs in flight until told to stop; each job has a client of its own."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str,
        journal: Journal,
        *,
        seed: int,
        model: str,
        in_flight: int,
        candidates: int,
        most: int | None = None,
        plain: bool = False,
        per_s: float | None = None,
    ) -> None:
        """`most`: submit no more jobs than that; `plain`: none with a cap, a cancel or a second submission.

        `per_s`: submit so many jobs a second at random moments (while fewer than `in_flight` run), else as others end.
        """

        self.journal = journal
        self.done: set[str] = set()
        self.accepted: dict[str, str] = {}
        """Job ids by idempotency key."""
        self._last: dict[str, int] = {}
        """The last event seen, by job."""
        self._urls = list(urls)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._dice = random.Random(f"clients {seed}")
        self._seed = seed
        self._model = model
        self._in_flight = in_flight
        self._candidates = candidates
        self._enough = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: httpx2.AsyncClient
        self._most = most
        self._plain = plain
        self._per_s = per_s
        self._submitted = 0

    def start(self) -> None:
        """Begin to submit."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()

    def enough(self) -> None:
        """Submit nothing more; what runs is followed to its end."""
        self._loop.call_soon_threadsafe(self._enough.set)

    def close(self) -> None:
        """Give up what is still being followed."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    @property
    def running(self) -> int:
        """Jobs that were accepted and that no client has seen end."""
        return len(self.accepted) - len(self.done)

    @property
    def over(self) -> bool:
        """Whether every client has seen its job's end."""
        return self._enough.is_set() and not self._tasks

    async def _begin(self) -> None:
        limits = httpx2.Limits(max_connections=1000, max_keepalive_connections=20)
        self._client = httpx2.AsyncClient(headers=self._headers, timeout=ANSWER_S, limits=limits)
        self._submitting = asyncio.create_task(self._submit_until_enough())

    async def _end(self) -> None:
        for task in (self._submitting, *self._tasks):
            task.cancel()
        await asyncio.gather(self._submitting, *self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _submit_until_enough(self) -> None:
        while not self._enough.is_set():
            if self._submitted == self._most:
                self._enough.set()
            elif len(self._tasks) < self._in_flight:
                task = asyncio.create_task(self._life(self._submitted))
                self._submitted += 1
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(self._dice.expovariate(self._per_s) if self._per_s else 0.02)

    async def _life(self, number: int) -> None:
        dice = random.Random(f"{self._seed} {number}")
        # A few jobs meet a cap before their candidates are used up.
        budget = {} if self._plain else {7: {"calls": 3}, 9: {"usd": "0.50"}}.get(number % 10, {})
        asked = body(self._candidates, self._model, number, **budget)
        key = f"chaos-{self._seed}-{number}"
        job_id = await self._submit(key, asked)
        if job_id is None:
            return
        self.accepted[key] = job_id
        if dice.random() < 0.2 and not self._plain:
            again = await self._submit(key, asked)
            self.journal.write("submitted_again", key=key, job_id=again)
        cancels = dice.random() < 0.1 and not self._plain
        cancelling = asyncio.create_task(self._cancel(job_id, dice.uniform(1.0, 20.0))) if cancels else None
        ways = (self._stream, self._pages) if self._plain else (self._stream, self._stream, self._slowly, self._pages)
        way = dice.choice(ways)
        await way(job_id)
        if cancelling is not None:
            cancelling.cancel()
        await self._last_look(job_id)
        self.done.add(key)

    async def _submit(self, key: str, asked: Body) -> str | None:
        self.journal.write("submitting", key=key, body=asked)
        while True:
            found = await self._ask("POST", "/v1/jobs", headers={"Idempotency-Key": key}, json=asked)
            if found is None:
                await asyncio.sleep(RETRY_S)
            elif found.status_code in (200, 202):
                job = found.json()
                self.journal.write("accepted", key=key, job_id=job["id"], status=found.status_code, state=job["state"])
                return str(job["id"])
            else:
                self.journal.write("refused", key=key, status=found.status_code, text=found.text)
                return None

    async def _cancel(self, job_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while True:
            found = await self._ask("POST", f"/v1/jobs/{job_id}/cancel", json={"reason": "chaos"})
            if found is not None:
                self.journal.write("cancelled", job_id=job_id, status=found.status_code, changed=_changed(found))
                return
            await asyncio.sleep(RETRY_S)

    async def _ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """An answer, or None where the service did not give one: a broken connection, a timeout, a 429 or a 5xx."""
        url = self._dice.choice(self._urls)
        try:
            found = await self._client.request(method, url + path, **more)
        except httpx2.HTTPError as error:
            self.journal.write("unanswered", path=path, why=type(error).__name__)
            return None
        if found.status_code == 429 or found.status_code >= 500:
            self.journal.write("failed", path=path, status=found.status_code, text=found.text)
            return None
        return found

    async def _stream(self, job_id: str, pause_s: float = 0.0) -> None:
        """Server-sent events, taken up again after the last one seen whenever the connection breaks."""
        while True:
            last = self._last.get(job_id)
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(last)} if last else {})
            url = f"{self._dice.choice(self._urls)}/v1/jobs/{job_id}/events"
            timeout = httpx2.Timeout(ANSWER_S, read=SILENCE_S)
            try:
                async with self._client.stream("GET", url, headers=headers, timeout=timeout) as answer:
                    if answer.status_code == 204:
                        return
                    if answer.status_code == 200 and await self._read_stream(job_id, answer, pause_s):
                        return
            except httpx2.HTTPError as error:
                self.journal.write("stream_broke", job_id=job_id, why=type(error).__name__)
            await asyncio.sleep(RETRY_S)

    async def _read_stream(self, job_id: str, answer: httpx2.Response, pause_s: float) -> bool:
        frame: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(":")
                frame[name] = value.strip()
                continue
            if "id" in frame:
                self._last[job_id] = int(frame["id"])
                data = json.loads(frame["data"])
                self.journal.write("event", job_id=job_id, seq=data["seq"], type=data["type"], data=data["data"])
                if data["type"] == "job.finished":
                    return True
                await asyncio.sleep(pause_s)
            frame = {}
        return False

    async def _slowly(self, job_id: str) -> None:
        """A consumer that takes its time over each event, while the server's buffers fill."""
        await self._stream(job_id, pause_s=SLOW_S)

    async def _pages(self, job_id: str) -> None:
        """Pages of three events."""
        last = 0
        while True:
            found = await self._ask("GET", f"/v1/jobs/{job_id}/events", params={"after": last, "limit": 3})
            page = [] if found is None or found.status_code != 200 else found.json()["data"]
            for each in page:
                last = each["seq"]
                self.journal.write("event", job_id=job_id, seq=last, type=each["type"], data=each["data"])
                if each["type"] == "job.finished":
                    return
            if not page:
                await asyncio.sleep(1.0)

    async def _last_look(self, job_id: str) -> None:
        while True:
            found = await self._ask("GET", f"/v1/jobs/{job_id}")
            if found is not None and found.status_code == 200 and found.json()["state"] in TERMINAL:
                job: Mapping[str, Any] = found.json()
                told = {"state": job["state"], "stop_reason": job["stop_reason"], "usd": job["cost"]["llm_usd"]}
                self.journal.write("ended", job_id=job_id, **told)
                return
            if found is not None and found.status_code == 404:
                self.journal.write("missing", job_id=job_id)
                return
            await asyncio.sleep(RETRY_S)


def _changed(found: httpx2.Response) -> bool:
    return found.status_code == 202 and bool(found.json().get("changed", True))
