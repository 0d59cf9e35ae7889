"""How long dashboards wait, with 100,000 jobs and a million candidates stored: a real API before a real Postgres.

    python -m benchmarks.load.reads                  # fills a database of its own: 4 GB under $TMPDIR, two minutes
    python -m benchmarks.load.reads --jobs 1000 --candidates 10000

The API runs in a process of its own, as in service; one client asks, one request after another. Prints a line for each
kind of request: the median, the 95th and the 99th percentile in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

from benchmarks.load.fill import fill
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db.session import make_engine
from tests.support.schema import migrate

REQUESTS, WARMUPS = 400, 20
PORT = 18_111
START_S = 30.0


def main() -> int:
    """Fill, serve, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.reads", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--candidates", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="load-") as scratch:
        folder = Path(scratch)
        with EmbeddedPostgres(folder / "postgres") as postgres, EmbeddedValkey(folder / "valkey") as valkey:
            database_url = postgres.url_for("postgres")
            migrate(database_url)
            engine = make_engine(database_url, "load")
            fill(engine, jobs=options.jobs, candidates=options.candidates)
            engine.dispose()
            with serving(database_url, valkey.url) as (client, _pid):
                for name, request in _requests(client).items():
                    _say(name, _times_ms(client, *request))
    return 0


@contextmanager
def serving(database_url: str, redis_url: str) -> Iterator[tuple[httpx2.Client, int]]:
    """The API in a process of its own: a client of it, and its process id."""
    urls = {"KERNELWRIGHT_DATABASE_URL": database_url, "KERNELWRIGHT_REDIS_URL": redis_url}
    command = [sys.executable, "-m", "api", "--port", str(PORT)]
    with subprocess.Popen(command, env=os.environ | urls, stderr=subprocess.DEVNULL) as process:
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=30) as client:
                _wait_for(client)
                yield client, process.pid
        finally:
            process.terminate()


def _wait_for(client: httpx2.Client) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            client.get("/healthz").raise_for_status()
            return
        except httpx2.TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _requests(client: httpx2.Client) -> Mapping[str, tuple[str, dict[str, str], int]]:
    """Address, headers and the status that is right, by what they are called."""
    job = client.get("/v1/jobs", params={"limit": 1}).json()["data"][0]["id"]
    tag = client.get(f"/v1/jobs/{job}").headers["etag"]
    return {
        "summary": ("/v1/summary", {}, 200),
        "50 jobs": ("/v1/jobs", {}, 200),
        "50 running jobs": ("/v1/jobs?state=running", {}, 200),
        "a job": (f"/v1/jobs/{job}", {}, 200),
        "a job, unchanged": (f"/v1/jobs/{job}", {"If-None-Match": tag}, 304),
        "its candidates": (f"/v1/jobs/{job}/candidates", {}, 200),
        "the page of all jobs": ("/jobs", {}, 200),
    }


def _times_ms(client: httpx2.Client, path: str, headers: dict[str, str], status: int) -> list[float]:
    times = []
    for number in range(WARMUPS + REQUESTS):
        start = time.perf_counter()
        answer = client.get(path, headers=headers)
        took_ms = (time.perf_counter() - start) * 1e3
        if answer.status_code != status:
            raise RuntimeError(f"{path} answered {answer.status_code}, not {status}")
        if number >= WARMUPS:
            times.append(took_ms)
    return times


def _say(name: str, times_ms: list[float]) -> None:
    cuts = statistics.quantiles(times_ms, n=100)
    sys.stdout.write(f"{name:24} p50 {cuts[49]:6.1f}  p95 {cuts[94]:6.1f}  p99 {cuts[98]:6.1f} ms\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
