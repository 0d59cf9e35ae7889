"""A team submits jobs: 100 a second, each of them new."""

from __future__ import annotations

import aiohttp

from benchmarks.load.pace import Latencies, at_rate
from benchmarks.load.service import Service, cpu_s

PER_S = float(__import__("os").environ.get("RATE_S", "100"))
PROBLEMS = ("softmax", "layernorm", "cumsum", "cross_entropy")


async def submits(service: Service, seconds: float) -> Latencies:
    """Submit. Raises RuntimeError when a job is not accepted."""
    async with aiohttp.ClientSession(service.url, headers=service.headers) as session:

        async def submit(number: int) -> None:
            body = {
                "problem": PROBLEMS[number % len(PROBLEMS)],
                "target": {"hardware": "cpu", "language": "cpp"},
                "budget": {"candidates": 20},
                "labels": {"run": str(number)},
            }
            headers = {"Idempotency-Key": f"load-{number}"}
            async with session.post("/v1/jobs", json=body, headers=headers) as answer:
                await answer.read()
                if answer.status != 202:
                    raise RuntimeError(f"a submission was answered {answer.status}: {await answer.text()}")

        return await at_rate(submit, per_s=PER_S, seconds=seconds, server_cpu_s=lambda: cpu_s(service.api_pid))
