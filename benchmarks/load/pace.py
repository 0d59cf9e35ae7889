"""Requests at a given rate, whatever the answers take: what they take is counted from when each was due.

A generator that waits for an answer before it sends the next request sends fewer of them to a slow server, and measures
too little ("coordinated omission"). Here arrivals are a fixed schedule; one that could not be sent in time is late, and
its lateness is part of its latency.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long each request took from when it was due, in milliseconds."""

    ms: Sequence[float]
    per_s: float
    """Answers a second, as they came."""
    cpu_ms: float
    """CPU time of the server process for each request; NaN where it was not asked for."""

    def percentile(self, percent: float) -> float:
        """By linear interpolation."""
        ordered = sorted(self.ms)
        place = (len(ordered) - 1) * percent / 100
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def median(self) -> float:
        """The 50th percentile."""
        return statistics.median(self.ms)


async def at_rate(
    send: Callable[[int], Awaitable[None]], *, per_s: float, seconds: float, server_cpu_s: Callable[[], float]
) -> Latencies:
    """Call `send(number)` `per_s` times a second; the first two seconds are for warming up and not counted.

    Raises what `send` raises: a request that fails is no latency.
    """
    taken: list[float] = []
    warm = int(WARM_UP_S * per_s)
    begin = time.perf_counter() + 0.1

    async def one(number: int) -> None:
        due = begin + number / per_s
        await send(number)
        if number >= warm:
            taken.append((time.perf_counter() - due) * 1e3)

    gc.collect()
    gc.freeze()
    cpu = 0.0
    async with asyncio.TaskGroup() as group:
        for number in range(warm + int(seconds * per_s)):
            if number == warm:
                cpu = server_cpu_s()
            delay = begin + number / per_s - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            group.create_task(one(number))
    over = time.perf_counter() - begin - WARM_UP_S
    return Latencies(taken, len(taken) / over, (server_cpu_s() - cpu) * 1e3 / len(taken))
