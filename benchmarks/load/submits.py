"""A team submits jobs, each of them new."""

from __future__ import annotations

from benchmarks.load.pace import Latencies, at_rate
from benchmarks.load.service import Service, clients, cpu_s

PROBLEMS = ("softmax", "layernorm", "cumsum", "cross_entropy")


async def submits(service: Service, seconds: float, per_s: float) -> Latencies:
    """Submit so many a second. Raises RuntimeError when a job is not accepted."""
    async with clients(service) as sessions:

        async def submit(number: int) -> None:
            body = {
                "problem": PROBLEMS[number % len(PROBLEMS)],
                "target": {"hardware": "cpu", "language": "cpp"},
                "budget": {"candidates": 20},
                "labels": {"run": str(number)},
            }
            headers = {"Idempotency-Key": f"load-{per_s:.0f}-{number}"}
            async with sessions[number % len(sessions)].post("/v1/jobs", json=body, headers=headers) as answer:
                await answer.read()
                if answer.status != 202:
                    raise RuntimeError(f"a submission was answered {answer.status}: {await answer.text()}")

        return await at_rate(submit, per_s=per_s, seconds=seconds, server_cpu_s=lambda: cpu_s(service.api_pids))
