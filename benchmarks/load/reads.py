"""How long dashboards wait: one client asks, one request after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import httpx2

from benchmarks.load.pace import Latencies
from benchmarks.load.service import Service

REQUESTS, WARMUPS = 400, 20


def reads(service: Service) -> Iterator[tuple[str, Latencies]]:
    """Each kind of request by its name, with what its answers took. Raises RuntimeError for another status."""
    with httpx2.Client(base_url=service.url, headers=service.headers, timeout=30) as client:
        for name, request in _requests(client).items():
            yield name, _timed(client, *request)


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


def _timed(client: httpx2.Client, path: str, headers: dict[str, str], status: int) -> Latencies:
    times_ms = []
    for number in range(WARMUPS + REQUESTS):
        start = time.perf_counter()
        answer = client.get(path, headers=headers)
        took_ms = (time.perf_counter() - start) * 1e3
        if answer.status_code != status:
            raise RuntimeError(f"{path} answered {answer.status_code}, not {status}")
        if number >= WARMUPS:
            times_ms.append(took_ms)
    return Latencies(times_ms, 1e3 * len(times_ms) / sum(times_ms), float("nan"))
