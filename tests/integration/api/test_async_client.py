"""The asynchronous client against a real API: its calls, and a stream of events that is cut again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cli.client import AsyncClient, Client, Invalid, NotFound, Retry
from tests.integration.api.conftest import BODY
from tests.integration.api.history import History

QUICK = Retry(attempts=8, first_pause_s=0.02, longest_pause_s=0.1)


class Cutting:
    """A proxy that cuts each connection when it has handed so many bytes back; each time twice as many."""

    def __init__(self, port: int, first_bytes: int) -> None:
        self._port, self._allowed = port, first_bytes
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        allowed, self._allowed = self._allowed, 2 * self._allowed
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(self._forward(reader, back))
        try:
            while allowed > 0 and (chunk := await there.read(min(allowed, 4096))):
                writer.write(chunk)
                await writer.drain()
                allowed -= len(chunk)
        finally:
            asking.cancel()
            back.close()
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(4096):
            writer.write(chunk)
            await writer.drain()


@asynccontextmanager
async def cutting(url: str, first_bytes: int) -> AsyncIterator[tuple[str, Cutting]]:
    proxy = Cutting(int(url.rpartition(":")[2]), first_bytes)
    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", proxy
    finally:
        server.close()
        await server.wait_closed()


def with_client(url: str, use: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with AsyncClient(url, retry=QUICK) as client:
            return await use(client)

    return asyncio.run(run())


def test_a_job_from_its_submission_to_its_end(url: str, history: History) -> None:
    async def use(client: AsyncClient) -> None:
        assert await client.ready()
        job = await client.submit(BODY)
        history.start(job["id"])
        waiting = asyncio.create_task(client.wait(job["id"], timeout_s=20.0))
        candidate_id = await asyncio.to_thread(history.evaluate, job["id"], speedup=2.0)
        await asyncio.to_thread(history.finish, job["id"])
        assert (await waiting)["state"] == "succeeded"
        assert (await client.best(job["id"]))["id"] == candidate_id
        assert "ModelNew" in await client.best_source(job["id"])
        page = await client.candidates(job["id"], verdict="ok")
        assert [each["id"] for each in page["data"]] == [candidate_id]
        assert [each["name"] for each in await client.problems()]

    with_client(url, use)


def test_two_at_once_share_a_client(url: str) -> None:
    async def use(client: AsyncClient) -> None:
        jobs = await asyncio.gather(*(client.submit(BODY) for _ in range(5)))
        assert len({job["id"] for job in jobs}) == 5

    with_client(url, use)


def test_a_refusal_points_at_the_field(url: str) -> None:
    async def use(client: AsyncClient) -> None:
        with pytest.raises(Invalid) as refused:
            await client.submit({**BODY, "seed": -1})
        assert [each["pointer"] for each in refused.value.errors] == ["#/seed"]
        with pytest.raises(NotFound):
            await client.job("job_00000000000000000000000000000000")

    with_client(url, use)


def test_every_event_once_through_connections_that_are_cut(url: str, client: Client, history: History) -> None:
    job = client.submit(BODY)
    history.start(job["id"])
    for _ in range(4):
        history.evaluate(job["id"], speedup=2.0)
    history.finish(job["id"])
    whole = client.events(job["id"], limit=200)["data"]

    async def follow() -> tuple[list[int], int]:
        async with cutting(url, 1200) as (through, proxy), AsyncClient(through, retry=QUICK) as made:
            return [event["seq"] async for event in made.follow(job["id"])], proxy.connections

    seen, connections = asyncio.run(follow())
    assert seen == [event["seq"] for event in whole]
    assert connections > 2


def test_a_submission_whose_answer_is_lost_makes_one_job(url: str, client: Client) -> None:
    async def submit() -> tuple[str, int]:
        # The first answer is cut in its head: the job is made, and the client does not learn of it.
        async with cutting(url, 40) as (through, proxy), AsyncClient(through, retry=QUICK) as made:
            return (await made.submit(BODY))["id"], proxy.connections

    job_id, connections = asyncio.run(submit())
    assert connections > 1
    assert [job["id"] for job in client.jobs()["data"]] == [job_id]
