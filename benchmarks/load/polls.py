"""Dashboards poll jobs with the entity tag that they have: 500 requests a second."""

from __future__ import annotations

import itertools

from benchmarks.load.pace import Latencies, at_rate
from benchmarks.load.service import Service, clients, cpu_s

PER_S = 500.0
RUNNING, WAITING = 200, 50
"""Jobs that are polled by turns: who waits for a place in the queue looks as well."""


async def polls(service: Service, seconds: float) -> Latencies:
    """Poll, each time with the tag of the answer before. Raises RuntimeError when a poll is neither 200 nor 304."""
    jobs = [*service.running_jobs(RUNNING), *service.waiting_jobs(WAITING)]
    async with clients(service) as sessions:
        tags = {}
        for job in jobs:
            async with sessions[0].get(f"/v1/jobs/{job}") as answer:
                tags[job] = answer.headers["ETag"]
        turns = itertools.cycle(jobs)

        async def poll(number: int) -> None:
            job, session = next(turns), sessions[number % len(sessions)]
            async with session.get(f"/v1/jobs/{job}", headers={"If-None-Match": tags[job]}) as answer:
                await answer.read()
                if answer.status not in (200, 304):
                    raise RuntimeError(f"a poll was answered {answer.status}: {await answer.text()}")
                tags[job] = answer.headers["ETag"]

        return await at_rate(poll, per_s=PER_S, seconds=seconds, server_cpu_s=lambda: cpu_s(service.api_pids))
