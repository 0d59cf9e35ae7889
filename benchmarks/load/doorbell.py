"""From a committed row of work to the worker that starts it: a control worker as deployed, and nothing else to do.

Each unit is the advance of a job that has ended, which finds nothing to decide; they come 0.05 to 0.15 s apart. The
start is when Postgres recorded the claim, the commit is timed here: one machine, one clock.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from benchmarks.load.pace import Latencies
from benchmarks.load.service import Service
from cli.deployment import Surroundings, worker_programs
from db import ledger
from db.session import make_sessions
from db.vocabulary import QUEUE_CONTROL, WorkKind
from worker.client import ring

WARM_UP = 20
START_S = 60.0

_ENDED = text("SELECT id FROM jobs WHERE finished_at IS NOT NULL ORDER BY id DESC LIMIT :count")
_CLAIMED = text("SELECT extract(epoch FROM claimed_at) FROM work WHERE id = :id AND claimed_at IS NOT NULL")
_REST = text("UPDATE work SET not_before = now() + interval '1 hour' WHERE state = 'queued'")


def doorbell(service: Service, count: int, scratch: Path) -> Latencies:
    """Ring for so many units of work, one after another. Raises TimeoutError when one is not started."""
    sessions = make_sessions(service.engine)
    with sessions.begin() as session:
        session.execute(_REST)  # what the fill left waiting would be done first
        jobs: Sequence[str] = list(session.scalars(_ENDED, {"count": count + WARM_UP}))
    environment = {"KERNELWRIGHT_DATABASE_URL": service.database_url, "KERNELWRIGHT_REDIS_URL": service.redis_url}
    os.environ.update(environment)  # for the ring, which reads its settings from there
    pauses = random.Random(7)
    delays_ms = []
    with _control_worker(environment, scratch):
        for number, job in enumerate(jobs):
            time.sleep(pauses.uniform(0.05, 0.15))
            with sessions.begin() as session:
                work = ledger.enqueue(session, kind=WorkKind.ADVANCE, queue=QUEUE_CONTROL, job_id=job)
            committed = time.time()
            if work is None:
                raise RuntimeError(f"an advance of {job} waits already")
            ring(work, QUEUE_CONTROL, WorkKind.ADVANCE.value)
            started = _started(service, work, START_S if number == 0 else 10.0)
            if number >= WARM_UP:
                delays_ms.append((started - committed) * 1e3)
    return Latencies(delays_ms, float("nan"), float("nan"))


def _started(service: Service, work: str, within_s: float) -> float:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with service.engine.connect() as connection:
            claimed = connection.scalar(_CLAIMED, {"id": work})
        if claimed is not None:
            return float(claimed)
        time.sleep(0.005)
    raise TimeoutError(f"{work} was not started within {within_s:.0f} s")


@contextmanager
def _control_worker(environment: dict[str, str], scratch: Path) -> Iterator[None]:
    around = Surroundings(env=environment | {"KERNELWRIGHT_HOME": str(scratch)}, scratch=scratch, logs=scratch)
    (program,) = worker_programs(("control",), (), around)
    with (scratch / "control.log").open("wb") as log:
        process = subprocess.Popen(program.argv, env=dict(program.env), cwd=program.cwd, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait()
