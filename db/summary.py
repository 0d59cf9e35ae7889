"""What a dashboard shows of the whole service: jobs, queues, workers with what they do, today's spending, waits.

Each question is one statement that reads live rows or a span of time, never a whole table (`db/summary.sql`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

from sqlalchemy.orm import Session

from db import ledger, workers
from db.ledger import QueueDepth
from db.models import Work, Worker
from db.statements import load_statements
from db.vocabulary import WorkerState, WorkKind

WAITS_OF: Final = 1000
"""So many of the newest claims, of the last hour, say how long work waits."""

SQL: Final = load_statements(Path(__file__).with_name("summary.sql"))


@dataclass(frozen=True, slots=True)
class Waits:
    """How long work had been ready when it was claimed, over the newest claims."""

    claims: int
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue: what waits and runs there, how many workers take from it, and how long work waited lately."""

    depth: QueueDepth
    workers: int
    waits: Waits | None


@dataclass(frozen=True, slots=True)
class Doing:
    """A unit of work that somebody does now."""

    work_id: str
    kind: WorkKind
    job_id: str
    candidate_id: str | None


@dataclass(frozen=True, slots=True)
class Busy:
    """A worker, and what it does now."""

    worker: Worker
    doing: Doing | None


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent since midnight UTC; calls of unknown price are not in it."""

    since: datetime
    usd: Decimal
    gpu_s: float


@dataclass(frozen=True, slots=True)
class SpentOnJobs:
    """What some jobs cost together; calls of unknown price are counted, and their price is not in it."""

    jobs: int
    usd: Decimal
    calls: int
    tokens: int
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole service at a glance; `ended` counts the jobs of the last 24 hours."""

    live: Mapping[str, int]
    ended: Mapping[str, int]
    queues: Sequence[QueueState]
    waits: Waits | None
    workers: Sequence[Busy]
    spent: Spent


def summary(session: Session) -> Summary:
    """The whole service at a glance."""
    found, alive = _waits(session), workers.list_workers(session)
    return Summary(
        live=live_jobs(session),
        ended=_counts(session, "jobs_ended"),
        queues=_queues(session, found, alive),
        waits=found.get(None),
        workers=_busy(session, alive),
        spent=spent_today(session),
    )


def queues(session: Session) -> list[QueueState]:
    """Every queue that holds work, that a worker serves, or whose work was claimed lately; by name."""
    return _queues(session, _waits(session), workers.list_workers(session))


def _queues(session: Session, found: Mapping[str | None, Waits], alive: Sequence[Worker]) -> list[QueueState]:
    depths = {depth.queue: depth for depth in ledger.depths(session)}
    served = [queue for worker in alive if worker.state == WorkerState.ACTIVE for queue in worker.queues]
    names = sorted({*depths, *served, *(name for name in found if name is not None)})
    return [
        QueueState(depths.get(name, QueueDepth(name, 0, 0, 0, 0.0)), served.count(name), found.get(name))
        for name in names
    ]


def _waits(session: Session) -> dict[str | None, Waits]:
    """By queue, and under None over all queues; nothing for a queue without a claim in the last hour."""
    rows = session.execute(SQL["waits"], {"claims": WAITS_OF})
    return {row.queue: Waits(row.claims, row.p50_s, row.p95_s) for row in rows if row.claims}


def _busy(session: Session, alive: Sequence[Worker]) -> list[Busy]:
    works = workers.current_works(session, alive)
    return [Busy(worker, _doing(works.get(worker.current_work or ""))) for worker in alive]


def _doing(work: Work | None) -> Doing | None:
    return None if work is None else Doing(work.id, WorkKind(work.kind), work.job_id, work.candidate_id)


def live_jobs(session: Session) -> dict[str, int]:
    """Jobs that have not ended, by state; a state of none is left out."""
    return _counts(session, "jobs_live")


def spent_today(session: Session) -> Spent:
    """What was spent since midnight UTC."""
    row = session.execute(SQL["spent_today"]).one()
    return Spent(row.since, row.usd, float(row.gpu_s))


def spent_on_jobs(session: Session, since: datetime) -> SpentOnJobs:
    """What the jobs submitted since then cost together."""
    row = session.execute(SQL["spent_on_jobs"], {"since": since}).one()
    return SpentOnJobs(row.jobs, row.usd, row.calls, int(row.tokens), float(row.gpu_s))


def _counts(session: Session, statement: str) -> dict[str, int]:
    return {row.state: row[1] for row in session.execute(SQL[statement])}
