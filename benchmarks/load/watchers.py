"""People watch jobs: 500 streams of server-sent events, and 50 events a second.

Either all watch one job, in which all the events are (25,000 deliveries a second), or they are spread over 50 jobs with
one event a second each. An event's delivery is timed from just after its commit to its arrival, by one clock: writer,
server and watchers are on one machine. Half of the watchers lose their connection in the middle and resume.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.load.pace import Latencies
from benchmarks.load.service import Service, cpu_s
from db import events
from db.session import make_sessions
from db.vocabulary import EventType

WATCHERS: Final = 500
EVENTS_PER_S: Final = 50
SETTLE_S: Final = 3.0
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


@dataclass(slots=True)
class Writer:
    """Writes events at a rate, in turns over the jobs, and notes when each was committed."""

    sessions: sessionmaker[Session]
    jobs: Sequence[str]
    seconds: float
    committed: dict[int, float] = field(default_factory=dict)
    of_job: dict[str, list[int]] = field(default_factory=dict)

    def run(self) -> None:
        """Until all are written."""
        begin = time.perf_counter()
        for number in range(int(self.seconds * EVENTS_PER_S)):
            time.sleep(max(0.0, begin + number / EVENTS_PER_S - time.perf_counter()))
            job = self.jobs[number % len(self.jobs)]
            with self.sessions.begin() as session:
                seq = events.append(session, job, EventType.CANDIDATE_EVALUATED, {"load": number})
            self.committed[seq] = time.perf_counter()
            self.of_job.setdefault(job, []).append(seq)


@dataclass(slots=True)
class Watcher:
    """One stream, resumed by Last-Event-ID when its connection is cut."""

    job: str
    last: int
    arrived: list[tuple[int, float]] = field(default_factory=list)

    async def follow(self, session: aiohttp.ClientSession, cut_after: int | None) -> None:
        """Follow until cancelled; after so many events the connection is dropped once."""
        while True:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self.last)}
            async with session.get(f"/v1/jobs/{self.job}/events", headers=headers) as answer:
                answer.raise_for_status()
                rest = b""
                while chunk := await answer.content.readany():
                    now = time.perf_counter()
                    whole, _, rest = (rest + chunk).rpartition(b"\n\n")
                    for found in _ID.finditer(whole):
                        self.last = int(found[1])
                        self.arrived.append((self.last, now))
                    if cut_after is not None and len(self.arrived) >= cut_after:
                        cut_after = None
                        break


async def watchers(service: Service, seconds: float, *, jobs: int) -> tuple[Latencies, int, int]:
    """The deliveries, how many events were missed, and how many came twice or out of order."""
    watched = service.running_jobs(jobs)
    sessions = make_sessions(service.engine)
    with sessions() as session:
        newest = {job: max((event.seq for event in events.page(session, job, 0, 1000)), default=0) for job in watched}
    writer = Writer(sessions, watched, seconds)
    following = [Watcher(watched[number % jobs], newest[watched[number % jobs]]) for number in range(WATCHERS)]
    half = max(1, int(seconds * EVENTS_PER_S / jobs / 2))
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
    async with aiohttp.ClientSession(
        service.url, headers=service.headers, connector=connector, timeout=timeout
    ) as session:
        tasks = [
            asyncio.create_task(each.follow(session, half if number % 2 else None))
            for number, each in enumerate(following)
        ]
        await asyncio.sleep(SETTLE_S)
        cpu, begin = cpu_s(service.api_pids), time.perf_counter()
        await asyncio.to_thread(writer.run)
        over = time.perf_counter() - begin
        await asyncio.sleep(SETTLE_S)
        used_s = cpu_s(service.api_pids) - cpu
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [error for error in ended if isinstance(error, Exception)]
    if broken:
        raise broken[0]
    return _judged(writer.of_job, writer.committed, following, over, used_s)


def _judged(
    of_job: Mapping[str, Sequence[int]],
    committed: Mapping[int, float],
    following: Sequence[Watcher],
    over_s: float,
    used_s: float,
) -> tuple[Latencies, int, int]:
    delays_ms, missed, wrong = [], 0, 0
    for each in following:
        came = [seq for seq, _ in each.arrived]
        wrong += sum(later <= earlier for earlier, later in zip(came, came[1:], strict=False))
        missed += len(set(of_job[each.job]) - set(came))
        delays_ms += [max(0.0, at - committed[seq]) * 1e3 for seq, at in each.arrived if seq in committed]
    return Latencies(delays_ms, len(delays_ms) / over_s, used_s * 1e3 / max(1, len(delays_ms))), missed, wrong
