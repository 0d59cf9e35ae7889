"""An hour at seventy percent of what the fleet can do, in peace: nothing may grow but what is stored.

    python -m tests.chaos --figures soak --soak-s 3600 --out chaos.jsonl

Leases as in production; one of the four evaluators has the real judge, and every candidate is a kernel to be built.
First as many jobs as the fleet can take tell its capacity; then jobs come at random moments at 70 % of that rate, are
streamed, paged, cancelled and submitted twice, while a dashboard asks for summary, jobs and metrics each second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpx2
import structlog
from sqlalchemy import text

from tests.chaos.checker.rows import check_rows
from tests.chaos.checker.told import check_told
from tests.chaos.checker.traces import shared_memory
from tests.chaos.checker.violations import Violation, violation
from tests.chaos.clients import Clients
from tests.chaos.figures import LONGEST_S, Figure, fleet_of
from tests.chaos.fleet import MODEL, Fleet, Options
from tests.chaos.growth import Sample, Table, check, growths, handles, memory, settled_processes
from tests.chaos.journal import Journal
from tests.chaos.provider import KERNEL, PRICE_USD
from tests.chaos.run import POLL_S, settled

SHARE: Final = 0.7
CAPACITY_S: Final = 180.0
EVERY_S: Final = 15.0
WARM_UP_SHARE: Final = 1 / 6
"""Of the soak: caches, pools and heaps find their size, the first statistics of tables are made."""
KEPT_EVERY: Final = 20
"""Of the samples, so many apart are kept in the results file: five minutes."""

log = structlog.get_logger("chaos")


def soak(length_s: float, seed: int = 0) -> tuple[Figure, list[Violation]]:
    """Load the fleet for so long, and see what grew."""
    options = Options(seed=seed, lease_s=45.0, renew_s=10.0, real_judges=1, scratch_mb=2048)
    with fleet_of(options) as (fleet, journal):
        fleet.provider.source = KERNEL
        with _dashboard(fleet) as unanswered:
            capacity = _capacity(fleet, journal, seed)
            log.info("chaos.capacity", jobs_per_s=round(capacity, 3))
            samples = _under_load(fleet, journal, seed + 1, SHARE * capacity, length_s)
        with fleet.database.connect() as connection:
            violations = [*check_rows(connection, PRICE_USD), *check_told(connection, journal)]
            verdicts = {verdict: count for verdict, count in connection.execute(text(_VERDICTS))}
    steady = [each for each in samples if each.at_s >= WARM_UP_SHARE * length_s]
    figure = {
        "figure": "soak",
        "length_s": length_s,
        "capacity_jobs_per_s": round(capacity, 3),
        "load": SHARE,
        "jobs": samples[-1].jobs - samples[0].jobs,
        "verdicts": verdicts,
        "growth": [
            {"what": what, "seen": round(seen, 2), "bound": round(most, 2)} for what, seen, most in growths(steady)
        ],
        "samples": [each.to_json() for each in samples[::KEPT_EVERY]],
    }
    refused = violation("a dashboard is answered", "it was not", unanswered)
    return figure, [*violations, *check(steady), *refused]


_VERDICTS = "SELECT verdict, count(*) FROM evaluations GROUP BY 1 ORDER BY 1"


def _capacity(fleet: Fleet, journal: Journal, seed: int) -> float:
    """Jobs a second where always more of them wait than can be worked on."""
    with _clients(fleet, journal, seed, in_flight=60) as clients:
        time.sleep(CAPACITY_S / 3)
        before, began = _ended(fleet), time.monotonic()
        time.sleep(CAPACITY_S * 2 / 3)
        rate = (_ended(fleet) - before) / (time.monotonic() - began)
        _finish(fleet, clients)
    if not rate:
        raise RuntimeError(f"no job ended in {CAPACITY_S:.0f} s: see {fleet.logs}")
    return rate


def _under_load(fleet: Fleet, journal: Journal, seed: int, per_s: float, length_s: float) -> list[Sample]:
    samples = []
    began = time.monotonic()
    with _clients(fleet, journal, seed, in_flight=200, per_s=per_s) as clients:
        while (at_s := time.monotonic() - began) < length_s:
            samples.append(_sample(fleet, at_s))
            time.sleep(max(0.0, began + at_s + EVERY_S - time.monotonic()))
        _finish(fleet, clients)
    return samples


@contextmanager
def _clients(fleet: Fleet, journal: Journal, seed: int, **more: Any) -> Iterator[Clients]:
    clients = Clients(fleet.urls, fleet.secrets.client, journal, seed=seed, model=MODEL, candidates=4, **more)
    clients.start()
    try:
        yield clients
    finally:
        clients.close()


def _finish(fleet: Fleet, clients: Clients) -> None:
    """Wait until all that was accepted has ended. Raises TimeoutError."""
    clients.enough()
    began = time.monotonic()
    while not (clients.over and settled(fleet)):
        if time.monotonic() - began > LONGEST_S:
            raise TimeoutError("waited in vain: the jobs have ended")
        time.sleep(POLL_S)


def _ended(fleet: Fleet) -> int:
    with fleet.database.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL")).scalar_one())


def _sample(fleet: Fleet, at_s: float) -> Sample:
    mains = {name: fleet.pid(name) for name in ("postgres", "valkey", *fleet.programs)}
    processes = {name: settled_processes(pid) for name, pid in mains.items() if pid is not None}
    with fleet.broker() as broker:
        valkey: Any = broker.info()
    with fleet.database.connect() as connection:
        backends = connection.execute(
            text("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        )
        rows = connection.execute(text(_TABLES)).all()
        return Sample(
            at_s=round(at_s, 1),
            memory={name: memory(pids) for name, pids in processes.items()},
            handles={name: handles(pids) // _owners(name, pids) for name, pids in processes.items()},
            connections={"Postgres": backends.scalar_one(), "Valkey": valkey["connected_clients"]},
            valkey_bytes=valkey["used_memory"],
            files=sum(1 for _ in (fleet.scratch / "tmp").rglob("*")) + len(shared_memory()),
            tables={row.relname: Table(row.bytes, row.n_live_tup, row.n_dead_tup) for row in rows},
            jobs=_ended(fleet),
        )


def _owners(name: str, pids: Sequence[int]) -> int:
    """A backend of Postgres opens the files that its client's queries need, up to a limit of its own."""
    return max(1, len(pids)) if name == "postgres" else 1


_TABLES = """
SELECT relname, pg_total_relation_size(relid) AS bytes, n_live_tup, n_dead_tup FROM pg_stat_user_tables ORDER BY relname
"""


@contextmanager
def _dashboard(fleet: Fleet) -> Iterator[list[str]]:
    """Somebody who looks each second, at one API and the other; what was not answered."""
    unanswered: list[str] = []
    stop = threading.Event()
    paths = ("/v1/summary", "/v1/jobs?limit=50", "/metrics", "/v1/workers", "/v1/queues")

    def look() -> None:
        with httpx2.Client(headers={"Authorization": f"Bearer {fleet.secrets.client}"}, timeout=20) as client:
            number = 0
            while not stop.wait(1.0):
                number += 1
                path = paths[number % len(paths)]
                try:
                    client.get(fleet.urls[number % 2] + path).raise_for_status()
                except httpx2.HTTPError as error:
                    unanswered.append(f"{path}: {error}")

    thread = threading.Thread(target=look, name="dashboard", daemon=True)
    thread.start()
    try:
        yield unanswered
    finally:
        stop.set()
        thread.join(30)
