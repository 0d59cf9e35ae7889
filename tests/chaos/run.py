"""One schedule from its fleet to its verdict: start, load, faults, peace, checks."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import structlog
from sqlalchemy import text

from tests.chaos.checker.rows import check_rows
from tests.chaos.checker.summary import check_summary
from tests.chaos.checker.told import check_told
from tests.chaos.checker.traces import (
    check_environments,
    check_left,
    check_processes,
    check_secrets,
    shared_memory,
)
from tests.chaos.checker.violations import Violation, violation
from tests.chaos.clients import Clients
from tests.chaos.faults import KINDS
from tests.chaos.fleet import MODEL, Fleet, Options
from tests.chaos.journal import Journal
from tests.chaos.mounts import in_own_mounts
from tests.chaos.provider import PRICE_USD
from tests.chaos.schedule import plan, run
from tests.chaos.signals import tree

START_S: Final = 300.0
PEACE_S: Final = 240.0
"""How long what was accepted may take to end once the faults are over."""
POLL_S: Final = 0.2

log = structlog.get_logger("chaos")


@dataclass(frozen=True)
class Load:
    """How much is under way during a schedule."""

    length_s: float = 90.0
    in_flight: int = 50
    """Clients at a time; some of their jobs have ended and are still being read."""
    least_in_flight: int = 30
    candidates: int = 4


@dataclass(slots=True)
class Outcome:
    """What a schedule was and what was found: one line of the results file."""

    seed: int
    faults: list[str] = field(default_factory=list)
    least_in_flight: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "seed": self.seed,
            "faults": self.faults,
            "least_in_flight": self.least_in_flight,
            **self.facts,
            "violations": [each.to_json() for each in self.violations],
        }


def one(seed: int, load: Load, kinds: Sequence[str] = tuple(KINDS), keep: Path | None = None) -> Outcome:
    """Run the schedule of a seed. `keep`: a folder for its journal and logs."""
    before = shared_memory()
    outcome = Outcome(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        home = Path(folder) / "home"
        journal = Journal(Path(folder) / "journal.jsonl")
        fleet = Fleet(home, Options(seed=seed))
        try:
            with fleet:
                wait_until_ready(fleet)
                _under_faults(fleet, journal, load, kinds, outcome)
                _check_running(fleet, journal, outcome)
                fleet.stop_programs()
                _check_stopped(fleet, outcome, before)
                outcome.facts |= _facts(fleet)
        finally:
            if keep is not None:
                _keep(keep / f"seed-{seed}", journal, fleet)
        outcome.violations += check_processes(())
    outcome.facts["wall_s"] = round(time.monotonic() - began, 1)
    return outcome


def wait_until_ready(fleet: Fleet) -> None:
    """Until both APIs are ready and every worker has joined. Raises TimeoutError."""
    deadline = time.monotonic() + START_S
    headers = {"Authorization": f"Bearer {fleet.secrets.client}"}
    while time.monotonic() < deadline:
        fleet.tend()
        try:
            for url in fleet.urls:
                httpx2.get(f"{url}/readyz", headers=headers).raise_for_status()
            found = httpx2.get(f"{fleet.urls[0]}/v1/workers", headers=headers).raise_for_status().json()["data"]
        except httpx2.HTTPError:
            found = []
        if len(found) >= len(fleet.clocks):
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"the fleet did not start: see {fleet.logs}")


def _under_faults(fleet: Fleet, journal: Journal, load: Load, kinds: Sequence[str], outcome: Outcome) -> None:
    secret = fleet.secrets.client
    clients = Clients(
        fleet.urls,
        secret,
        journal,
        seed=outcome.seed,
        model=MODEL,
        in_flight=load.in_flight,
        candidates=load.candidates,
    )
    clients.start()
    try:
        while clients.running < load.in_flight:
            fleet.tend()
            time.sleep(POLL_S)
        began_at = time.time()
        outcome.faults = run(fleet, plan(outcome.seed, load.length_s, kinds), load.length_s)
        ended_at = time.time()
        fleet.heal()
        clients.enough()
        peace_began = time.monotonic()
        until = peace_began + PEACE_S
        while not (clients.over and settled(fleet)) and time.monotonic() < until:
            fleet.tend()
            time.sleep(POLL_S)
        outcome.least_in_flight = _least_in_flight(fleet, began_at, ended_at)
        outcome.facts["peace_s"] = round(time.monotonic() - peace_began, 1)
    finally:
        clients.close()
    unseen = [f"{key}: {job_id}" for key, job_id in clients.accepted.items() if key not in clients.done]
    outcome.violations += violation("promises are kept", "a client never saw the end of its job", unseen)


def _least_in_flight(fleet: Fleet, began_at: float, ended_at: float) -> int:
    """Of each second between, by the rows: jobs that were there and had not ended."""
    query = """
    SELECT min((SELECT count(*) FROM jobs WHERE created_at <= at AND coalesce(finished_at, 'infinity') > at))
    FROM generate_series(to_timestamp(:began_at), to_timestamp(:ended_at), interval '1 second') AS second (at)
    """
    with fleet.database.connect() as connection:
        return int(connection.execute(text(query), {"began_at": began_at, "ended_at": ended_at}).scalar_one())


def settled(fleet: Fleet) -> bool:
    """Whether nothing is left to do."""
    query = text(
        "SELECT (SELECT count(*) FROM work WHERE state IN ('queued', 'running'))"
        " + (SELECT count(*) FROM jobs WHERE finished_at IS NULL)"
    )
    with fleet.database.connect() as connection:
        return not connection.execute(query).scalar_one()


def _check_running(fleet: Fleet, journal: Journal, outcome: Outcome) -> None:
    headers = {"Authorization": f"Bearer {fleet.secrets.client}"}
    shown = httpx2.get(f"{fleet.urls[0]}/v1/summary", headers=headers).raise_for_status().json()
    metrics = httpx2.get(f"{fleet.urls[1]}/metrics").text
    prompts = json.dumps([request.body for request in fleet.provider.requests])
    mains = [fleet.pid(name) for name in ("postgres", "valkey", *fleet.programs)]
    running = [pid for pid in mains if pid is not None]
    caller = [pid for pid in (fleet.pid("llm"),) if pid is not None]
    below = [pid for main in running for pid in tree(main)]
    with fleet.database.connect() as connection:
        outcome.violations += [
            *check_rows(connection, PRICE_USD),
            *check_told(connection, journal),
            *check_summary(connection, shown),
            *check_processes(running),
            *check_environments(fleet.secrets.provider, caller, below),
            *check_secrets(
                fleet.secrets.all(),
                connection,
                [fleet.logs, fleet.scratch, journal.path.parent / "home" / "servers" / "log", fleet.valkey.data],
                {"the journal": journal.path.read_text(), "/metrics": metrics, "the prompts": prompts},
            ),
        ]


def _check_stopped(fleet: Fleet, outcome: Outcome, before: frozenset[str]) -> None:
    servers = [pid for pid in (fleet.pid("postgres"), fleet.pid("valkey")) if pid is not None]
    outcome.violations += check_processes(servers)
    of_postgres = frozenset(name for name in shared_memory() if "PostgreSQL" in name or name.startswith("sysv"))
    if in_own_mounts():  # else others of this machine come and go there
        outcome.violations += check_left(fleet.scratch, before | of_postgres)


def _facts(fleet: Fleet) -> dict[str, Any]:
    query = """
    SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM candidates) AS candidates,
           (SELECT count(*) FROM evaluations) AS evaluations,
           (SELECT count(*) FROM evaluations WHERE verdict = 'infra_error') AS infra_errors,
           (SELECT count(*) FROM llm_calls) AS calls,
           (SELECT count(*) FROM llm_calls WHERE state = 'started') AS calls_cut_off,
           (SELECT count(*) FROM llm_calls WHERE state = 'superseded') AS calls_superseded,
           (SELECT count(*) FROM events WHERE type = 'work.requeued') AS requeued,
           (SELECT count(*) FROM events WHERE type = 'work.returned') AS returned,
           (SELECT count(*) FROM events WHERE type = 'work.fenced') AS fenced,
           (SELECT count(*) FROM work WHERE state = 'dead') AS dead_work,
           (SELECT json_object_agg(state || ' ' || stop_reason, n) FROM
               (SELECT state, stop_reason, count(*) AS n FROM jobs GROUP BY 1, 2) AS ends) AS ends
    """
    with fleet.database.connect() as connection:
        return dict(connection.execute(text(query)).mappings().one())


def _keep(folder: Path, journal: Journal, fleet: Fleet) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in (journal.path, *fleet.logs.glob("*.log")):
        if path.exists():
            (folder / path.name).write_bytes(path.read_bytes())
