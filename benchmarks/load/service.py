"""The service as it is loaded: Postgres filled with a year's use, Valkey, and the API in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from sqlalchemy import Engine, text

from benchmarks.load.fill import fill
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db.keys import create_key
from db.session import make_engine, make_sessions
from db.vocabulary import Scope
from tests.support.schema import migrate

PORT = 18_111
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
    api_pid: int

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


def cpu_s(pid: int) -> float:
    """What a process used of the CPUs until now, by Linux' count."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def filled_service(*, jobs: int, candidates: int, say: bool = True) -> Iterator[Service]:
    """Start it with that many rows; all of it is gone afterwards. A million candidates take 4 GB under $TMPDIR."""
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
                with _api(database_url, valkey.url, folder / "api.log") as pid:
                    yield Service(f"http://127.0.0.1:{PORT}", key, database_url, valkey.url, engine, pid)
            finally:
                engine.dispose()


def _key(engine: Engine) -> str:
    with make_sessions(engine).begin() as session:
        return create_key(session, "load", {}, scopes=(Scope.READ, Scope.SUBMIT))


@contextmanager
def _api(database_url: str, redis_url: str, log: Path) -> Iterator[int]:
    """`python -m api` as an operator starts it. The rate limit of one key is lifted: the load comes from one."""
    environment = os.environ | {
        "KERNELWRIGHT_DATABASE_URL": database_url,
        "KERNELWRIGHT_REDIS_URL": redis_url,
        "KERNELWRIGHT_RATE_LIMIT": "1000000/minute",
    }
    command = [sys.executable, "-m", "api", "--port", str(PORT)]
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stderr=output, stdout=output) as process:
        try:
            _wait_for(process, log)
            yield process.pid
        finally:
            process.terminate()


def _wait_for(process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            httpx2.get(f"http://127.0.0.1:{PORT}/healthz").raise_for_status()
            return
        except httpx2.TransportError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the API did not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
