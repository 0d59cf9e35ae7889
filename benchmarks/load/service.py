"""The service as it is loaded: Postgres filled with a year's use, Valkey, and the API in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import httpx2
from sqlalchemy import Engine, text

from benchmarks.load.fill import fill
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from cli.preflight import listeners, url_of
from db.keys import create_key
from db.session import make_engine, make_sessions
from db.vocabulary import Scope
from tests.support.schema import migrate

START_S = 30.0


@dataclass(frozen=True, slots=True)
class Service:
    """What a measurement needs of it."""

    url: str
    key: str
    """An API key: requests are authenticated, as those of a team are."""
    database_url: str
    redis_url: str
    engine: Engine
    api_pids: Sequence[int]

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {"Authorization": f"Bearer {self.key}"}

    def running_jobs(self, limit: int) -> Sequence[str]:
        """Ids of jobs that run, the newest first."""
        return self._jobs("running", limit)

    def waiting_jobs(self, limit: int) -> Sequence[str]:
        """Ids of jobs that wait, the newest first."""
        return self._jobs("queued", limit)

    def _jobs(self, state: str, limit: int) -> Sequence[str]:
        query = text("SELECT id FROM jobs WHERE state = :state AND finished_at IS NULL ORDER BY id DESC LIMIT :limit")
        with self.engine.connect() as connection:
            return list(connection.scalars(query, {"state": state, "limit": limit}))


CLIENTS: Final = 40
"""Dashboards and scripts, each with connections of its own: the kernel deals connections out to the API's processes,
and one client that uses its last connection again would load one of them."""


@asynccontextmanager
async def clients(service: Service) -> AsyncIterator[Sequence[aiohttp.ClientSession]]:
    """So many of them."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(aiohttp.ClientSession(service.url, headers=service.headers))
            for _ in range(CLIENTS)
        ]


def cpu_s(pids: Iterable[int]) -> float:
    """What processes used of the CPUs until now, by Linux' count."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


@contextmanager
def filled_service(*, jobs: int, candidates: int, say: bool = True, processes: int = 1) -> Iterator[Service]:
    """Start it with that many rows; all of it is gone afterwards. A million candidates take 4 GB under $TMPDIR.

    `processes`: of the API, on one port.
    """
    with tempfile.TemporaryDirectory(prefix="load-") as scratch:
        folder = Path(scratch)
        with EmbeddedPostgres(folder / "postgres") as postgres, EmbeddedValkey(folder / "valkey") as valkey:
            database_url = postgres.url_for("postgres")
            migrate(database_url)
            engine = make_engine(database_url, "load")
            try:
                took_s = sum(fill(engine, jobs=jobs, candidates=candidates).values())
                if say:
                    sys.stdout.write(f"{jobs:,} jobs and {candidates:,} candidates stored in {took_s:.0f} s\n")
                    sys.stdout.flush()
                key = _key(engine)
                pids: list[int] = []
                with ExitStack() as stack:
                    sockets = [stack.enter_context(each) for each in listeners("127.0.0.1", 0, processes)]
                    counts = folder / "counts"
                    counts.mkdir()
                    for number, each in enumerate(sockets):
                        log = folder / f"api-{number}.log"
                        pids.append(stack.enter_context(_api(database_url, valkey.url, each, counts, log)))
                    yield Service(url_of(sockets[0]), key, database_url, valkey.url, engine, pids)
            finally:
                engine.dispose()


def _key(engine: Engine) -> str:
    with make_sessions(engine).begin() as session:
        return create_key(session, "load", {}, scopes=(Scope.READ, Scope.SUBMIT))


@contextmanager
def _api(database_url: str, redis_url: str, listener: socket.socket, counts: Path, log: Path) -> Iterator[int]:
    """A server as `kernelwright up` starts it. The limits of one key are lifted: the load comes from one."""
    environment = os.environ | {
        "KERNELWRIGHT_DATABASE_URL": database_url,
        "KERNELWRIGHT_REDIS_URL": redis_url,
        "KERNELWRIGHT_RATE_LIMIT": "1000000/minute",
        "KERNELWRIGHT_STREAMS_PER_KEY": "0",
        "PROMETHEUS_MULTIPROC_DIR": str(counts),
    }
    command = [sys.executable, "-m", "cli.serve", str(listener.fileno())]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment, stderr=output, stdout=output, pass_fds=[listener.fileno()]
        ) as process,
    ):
        try:
            _wait_for(process, url_of(listener), log)
            yield process.pid
        finally:
            process.terminate()


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            httpx2.get(f"{url}/healthz").raise_for_status()
            return
        except httpx2.TransportError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the API did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
