"""The business gauges of /metrics, from SQL: what is waiting, leased, running and spent in the service as a whole.

They are read at most every few seconds however often anybody scrapes, and every replica of the API reports the same
numbers: take their maximum over the replicas, never their sum.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.store import Store
from db.gauges import Live, QueueGauge, Spending, read_live, read_spending
from db.outbox import Depth

LIVE_EVERY_S: Final = 5.0
SPENDING_EVERY_S: Final = 60.0
# A scraper gives up after ten seconds; a database that is away must be reported before that.
_READ_S: Final = 3.0

T = TypeVar("T")
log = structlog.get_logger("api")


class _Cached(Generic[T]):
    """What a query said, and when it is to be asked again."""

    def __init__(self, query: Callable[[Session], T], every_s: float) -> None:
        self.value: T | None = None
        self._query = query
        self._every_s = every_s
        self._due_at = 0.0

    async def refresh(self, store: Store) -> None:
        """Ask again if it is time. A failure forgets the value: old numbers would hide that the database is away."""
        if time.monotonic() < self._due_at:
            return
        self.value = None
        async with asyncio.timeout(_READ_S):
            self.value = await store.read(self._query)
        self._due_at = time.monotonic() + self._every_s


class ServiceGauges(Collector):
    """Collects what was last read; `refresh` reads."""

    def __init__(self) -> None:
        self._live = _Cached(read_live, LIVE_EVERY_S)
        self._spending = _Cached(read_spending, SPENDING_EVERY_S)
        self._reached = False
        self._turn = asyncio.Lock()

    async def refresh(self, store: Store) -> None:
        """Read anew what is too old. Never raises for a database that is away: the gauges say so."""
        async with self._turn:
            try:
                await self._live.refresh(store)
                await self._spending.refresh(store)
            except (SQLAlchemyError, TimeoutError) as error:
                self._reached = False
                log.warning("metrics.unread", why=str(error).partition("\n")[0] or type(error).__name__)
            else:
                self._reached = True

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not collect to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The families for what was last read."""
        reached = "Whether the database answered the last time that it was asked for these gauges."
        yield _gauge("database_reached", reached, {(): float(self._reached)})
        if self._live.value is not None:
            yield from _live(self._live.value)
        if self._spending.value is not None:
            yield from _spending(self._spending.value)


def _live(live: Live) -> Iterator[Metric]:
    for name, text, read in _QUEUE_GAUGES:
        yield _gauge(name, text, {(queue,): read(gauge) for queue, gauge in live.queues.items()}, "queue")
    leases = {
        (queue, state): float(count)
        for queue, gauge in live.queues.items()
        for state, count in (("live", gauge.leases_live), ("expired", gauge.leases_expired))
    }
    yield _gauge(
        "leases", "Work that some worker owns; expired: whose owner has not renewed it.", leases, "queue", "state"
    )
    jobs = {(state,): float(count) for state, count in live.jobs.items()}
    yield _gauge("jobs", "Jobs that have not ended, by state.", jobs, "state")
    workers = {(state,): float(count) for state, count in live.workers_by_state.items()}
    yield _gauge("workers", "Workers that were heard within a day, by state.", workers, "state")
    silent = {(each.id, each.hostname, ",".join(each.queues)): each.silent_s for each in live.workers}
    text = "For how long a worker that is not gone has been silent; a living one speaks every 10 s."
    yield _gauge("worker_heartbeat_age_seconds", text, silent, "worker", "hostname", "queues")
    yield from _webhooks(live.webhooks)


def _webhooks(depth: Depth) -> Iterator[Metric]:
    states = {("enabled",): float(depth.enabled), ("disabled",): float(depth.disabled)}
    yield _gauge("webhooks", "Webhooks, by whether they are told anything.", states, "state")
    yield _gauge("webhook_waiting", "Deliveries that wait for their first or next attempt.", {(): float(depth.waiting)})
    text = "How long the oldest delivery that is due has been due."
    yield _gauge("webhook_oldest_age_seconds", text, {(): depth.oldest_age_s})


_QUEUE_GAUGES: Final[tuple[tuple[str, str, Callable[[QueueGauge], float]], ...]] = (
    ("queue_ready_work", "Work that waits and is due.", lambda gauge: gauge.ready),
    ("queue_delayed_work", "Work that waits and is not due yet.", lambda gauge: gauge.delayed),
    ("queue_oldest_age_seconds", "How long the oldest ready work has been ready.", lambda gauge: gauge.oldest_age_s),
    ("queue_workers", "Active workers that serve the queue, heard within a minute.", lambda gauge: gauge.workers),
)


def _spending(spending: Spending) -> Iterator[Metric]:
    usd = {(): float(spending.usd_today)}
    yield _gauge("spend_today_usd", "Paid for calls to models that ended since midnight UTC.", usd)
    text = "Seconds for which evaluations, tunings and certificates since midnight UTC held their device."
    yield _gauge("gpu_today_seconds", text, {(): spending.gpu_s_today})
    text = "The share of an API key's cap that its jobs have used; 1 is all of it."
    yield _gauge("key_budget_used_ratio", text, dict(spending.key_used), "key", "cap")


def _gauge(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    family = GaugeMetricFamily(f"kernelwright_{name}", text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
