"""What a dashboard asks of the database as a whole: queues, leases, live jobs, workers, and what was spent today.

Two snapshots: `read_live` costs a few index scans over live rows (milliseconds), `read_spending` sums the rows
of today and of the keys that have caps (tens of milliseconds on a busy day), so it is read less often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Final

from sqlalchemy.orm import Session

from db import outbox
from db.statements import load_statements
from db.summary import live_jobs, spent_today
from db.vocabulary import JobState, WorkerState

SQL: Final = load_statements(Path(__file__).with_name("gauges.sql"))
CAPS: Final = ("usd", "gpu_s", "tokens", "calls")
"""The caps of a key that are shown as a used share."""

_LIVE_JOB_STATES: Final = tuple(state.value for state in JobState if not state.terminal)
_SILENT_S: Final = 60.0
"""A worker that says nothing for so long serves no queue, whatever its row says."""


@dataclass(frozen=True, slots=True)
class QueueGauge:
    """One queue now. `oldest_age_s` is how long the oldest ready row has been ready."""

    ready: int = 0
    delayed: int = 0
    oldest_age_s: float = 0.0
    leases_live: int = 0
    leases_expired: int = 0
    workers: int = 0
    """Active workers that were heard within a minute."""


@dataclass(frozen=True, slots=True)
class WorkerGauge:
    """One worker that is not gone, and for how many seconds it has been silent."""

    id: str
    hostname: str
    queues: tuple[str, ...]
    state: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class Live:
    """What is going on now."""

    queues: Mapping[str, QueueGauge] = field(default_factory=dict)
    """Each queue that has work or a worker."""
    jobs: Mapping[str, int] = field(default_factory=dict)
    """Jobs that have not ended, by state; every such state is there."""
    workers_by_state: Mapping[str, int] = field(default_factory=dict)
    """Workers heard within a day, by state; every state is there."""
    workers: tuple[WorkerGauge, ...] = ()
    webhooks: outbox.Depth = field(default_factory=outbox.Depth)


@dataclass(frozen=True, slots=True)
class Spending:
    """Spent since midnight UTC, and the share of each capped key's caps that is used (1.0: used up)."""

    usd_today: Decimal = Decimal(0)
    gpu_s_today: float = 0.0
    """Device seconds of evaluations, tunings and certificates."""
    key_used: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By the key's name and the cap's."""


def read_live(session: Session) -> Live:
    """The snapshot of what is live. Five statements."""
    workers = _workers(session)
    alive = tuple(worker for worker in workers if worker.state != WorkerState.GONE)
    return Live(
        queues=_queues(session, alive),
        jobs=dict.fromkeys(_LIVE_JOB_STATES, 0) | live_jobs(session),
        workers_by_state={str(state): sum(worker.state == state for worker in workers) for state in WorkerState},
        workers=alive,
        webhooks=outbox.depth(session),
    )


def read_spending(session: Session) -> Spending:
    """The snapshot of what was spent."""
    today = spent_today(session)
    used: dict[tuple[str, str], float] = {}
    for row in session.execute(SQL["keys"]):
        caps = {cap: getattr(row, f"budget_{cap}") for cap in CAPS}
        used |= {(row.name, cap): _share(getattr(row, cap), most) for cap, most in caps.items() if most is not None}
    return Spending(usd_today=today.usd, gpu_s_today=today.gpu_s, key_used=used)


def _workers(session: Session) -> list[WorkerGauge]:
    rows = session.execute(SQL["workers"])
    return [WorkerGauge(row.id, row.hostname, tuple(row.queues), row.state, float(row.silent_s)) for row in rows]


def _queues(session: Session, alive: tuple[WorkerGauge, ...]) -> dict[str, QueueGauge]:
    waiting = {row.queue: row for row in session.execute(SQL["queues"])}
    leases = {row.queue: row for row in session.execute(SQL["leases"])}
    serving = [queue for worker in alive if _serves(worker) for queue in worker.queues]
    found = {}
    for queue in sorted({*waiting, *leases, *serving}):
        row, leased = waiting.get(queue), leases.get(queue)
        found[queue] = QueueGauge(
            ready=row.ready if row else 0,
            delayed=row.delayed if row else 0,
            oldest_age_s=max(0.0, float(row.oldest_age_s)) if row else 0.0,
            leases_live=leased.live if leased else 0,
            leases_expired=leased.expired if leased else 0,
            workers=serving.count(queue),
        )
    return found


def _serves(worker: WorkerGauge) -> bool:
    return worker.state == WorkerState.ACTIVE and worker.silent_s < _SILENT_S


def _share(used: Decimal | float | int, cap: Decimal | float | int) -> float:
    """A cap of nothing is used up from the beginning."""
    return float(used) / float(cap) if cap else 1.0
