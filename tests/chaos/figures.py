"""Three figures beside the schedules: a kill every five seconds, recovery of one candidate, and a flushed Valkey.

python -m tests.chaos --figure kills|recovery|flush
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog
from sqlalchemy import text

from tests.chaos.checker.rows import check_rows
from tests.chaos.checker.told import check_told
from tests.chaos.checker.violations import Violation, violation
from tests.chaos.clients import Clients
from tests.chaos.faults import EVALUATING, PROGRAMS
from tests.chaos.fleet import MODEL, Fleet, Options
from tests.chaos.journal import Journal
from tests.chaos.provider import PRICE_USD
from tests.chaos.run import POLL_S, settled, wait_until_ready
from tests.chaos.signals import below, kill

KILL_EVERY_S: Final = 5.0
VICTIMS: Final = (*PROGRAMS, "postgres", "valkey")
CANDIDATES: Final = 4
LONGEST_S: Final = 1800.0
LONGEST_PER_JOB_S: Final = 10.0
"""Where a process is killed every five seconds: 100 jobs took 440 s on two cores."""
MARGIN_S: Final = 15.0
"""Beyond the lease, until a dead worker's candidate must run elsewhere."""
MOST_ADDED_S: Final = 45.0
AT_ONCE: Final = 3
"""Evaluators that are killed together: one at least goes on."""

log = structlog.get_logger("chaos")

Figure = dict[str, Any]


@contextmanager
def fleet_of(options: Options) -> Iterator[tuple[Fleet, Journal]]:
    """A fleet that is ready, and a journal."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, Fleet(Path(folder) / "home", options) as fleet:
        wait_until_ready(fleet)
        yield fleet, Journal(Path(folder) / "journal.jsonl")


@contextmanager
def load(
    fleet: Fleet, journal: Journal, *, seed: int, jobs: int | None, in_flight: int, candidates: int = CANDIDATES
) -> Iterator[Clients]:
    """Clients that submit so many jobs (None: until told to stop), and nothing else."""
    clients = Clients(
        fleet.urls,
        fleet.secrets.client,
        journal,
        seed=seed,
        model=MODEL,
        in_flight=in_flight,
        candidates=candidates,
        plain=True,
        most=jobs,
    )
    clients.start()
    try:
        yield clients
    finally:
        clients.close()


def kills(jobs: int, seed: int = 0) -> tuple[Figure, list[Violation]]:
    """So many jobs while every five seconds one process, server or program, gets SIGKILL."""
    dice = random.Random(f"kills {seed}")
    with fleet_of(Options(seed=seed, judge_s=0.2)) as (fleet, journal):
        fleet.provider.longest_s = 0.2
        began = killed_at = time.monotonic()
        killed: list[str] = []
        with load(fleet, journal, seed=seed, jobs=jobs, in_flight=60) as clients:
            while not (clients.over and settled(fleet)):
                _check_time(began, "the jobs have ended", max(LONGEST_S, LONGEST_PER_JOB_S * jobs))
                if time.monotonic() - killed_at > KILL_EVERY_S and not clients.over:
                    killed_at, victim = time.monotonic(), dice.choice(VICTIMS)
                    pid = fleet.pid(victim)
                    if pid is not None and kill([pid]):
                        killed.append(victim)
                fleet.tend()
                time.sleep(POLL_S)
        wall_s = time.monotonic() - began
        found = _counts(fleet)
        with fleet.database.connect() as connection:
            violations = [*check_rows(connection, PRICE_USD), *check_told(connection, journal)]
    figure = {"figure": "kills", "jobs": jobs, "kills": len(killed), "wall_s": round(wall_s), **found}
    wanted = {"terminal": jobs, "evaluations": jobs * CANDIDATES, "duplicates": 0}
    wrong = [f"{name}: {found[name]} and not {value}" for name, value in wanted.items() if found[name] != value]
    return figure, [*violations, *violation("all jobs, all candidates, once", "a count is wrong", wrong)]


def _counts(fleet: Fleet) -> Figure:
    query = """
    SELECT (SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL AND stop_reason IS NOT NULL) AS terminal,
           (SELECT count(*) FROM evaluations) AS evaluations,
           (SELECT count(*) - count(DISTINCT candidate_id) FROM evaluations) AS duplicates,
           (SELECT count(*) FROM evaluations WHERE verdict = 'infra_error') AS infra_errors,
           (SELECT count(*) FROM events WHERE type = 'work.requeued') AS requeued,
           (SELECT count(*) FROM events WHERE type = 'work.fenced') AS fenced,
           (SELECT count(*) FROM llm_calls WHERE state = 'started') AS calls_cut_off
    """
    with fleet.database.connect() as connection:
        return dict(connection.execute(text(query)).mappings().one())


def recovery(samples: int, options: Options, seed: int = 0) -> tuple[Figure, list[Violation]]:
    """From the kill -9 of an evaluator at work to its candidate's next claim, by the clock of Postgres.

    Each second time its main process is killed, else only the pool process that does the work.
    """
    took_s: list[float] = []
    with fleet_of(options) as (fleet, journal), load(fleet, journal, seed=seed, jobs=None, in_flight=12) as clients:
        dice = random.Random(f"recovery {seed}")
        while len(took_s) < samples:
            hit: list[tuple[str, int, float]] = []
            running = sorted(_running(fleet).items())
            for name, (work_id, attempt) in dice.sample(running, min(AT_ONCE, len(running))):
                killed_at, pid = _now(fleet), fleet.pid(name)
                main = (len(took_s) + len(hit)) % 2 == 0
                if pid is not None and kill([pid] if main else below(pid)[:1]):
                    hit.append((work_id, attempt, killed_at))
            found = [_claimed_again(fleet, *each) for each in hit]
            took_s += [each for each in found if each is not None]
            if found:
                log.info("chaos.recovered", took_s=found, of=len(took_s))
            fleet.tend()
            time.sleep(POLL_S)
        clients.enough()
    p95_s = sorted(took_s)[max(0, round(0.95 * len(took_s)) - 1)]
    figure = {
        "figure": "recovery",
        "samples": len(took_s),
        "lease_s": options.lease_s,
        "p50_s": round(statistics.median(took_s), 2),
        "p95_s": round(p95_s, 2),
        "most_s": round(max(took_s), 2),
        "must_be_under_s": options.lease_s + MARGIN_S,
    }
    late = [round(each, 2) for each in took_s] if p95_s > options.lease_s + MARGIN_S else []
    return figure, violation("dead workers' candidates go on", "a candidate was taken up too late", late)


def _running(fleet: Fleet) -> dict[str, tuple[str, int]]:
    """By evaluator: which evaluation it works on, and in which attempt, where that was begun half a second ago."""
    query = """
    SELECT workers.pid, work.id, work.attempt FROM work JOIN workers ON workers.id = work.lease_owner
    WHERE work.kind = 'evaluate' AND work.state = 'running' AND work.claimed_at BETWEEN now() - interval '1 second'
      AND now() - interval '0.3 seconds' AND work.attempt = 1
    """
    names = {fleet.pid(name): name for name in EVALUATING}
    with fleet.database.connect() as connection:
        return {names[pid]: (id, attempt) for pid, id, attempt in connection.execute(text(query)) if pid in names}


def _now(fleet: Fleet) -> float:
    with fleet.database.connect() as connection:
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def _claimed_again(fleet: Fleet, work_id: str, attempt: int, killed_at: float) -> float | None:
    """How long after the kill; None where the work had been finished just before it."""
    query = text("SELECT state, attempt, extract(epoch FROM claimed_at) AS at FROM work WHERE id = :id")
    while True:
        with fleet.database.connect() as connection:
            row = connection.execute(query, {"id": work_id}).one()
        if row.attempt > attempt:
            return float(row.at) - killed_at
        if row.state not in ("queued", "running"):
            return None
        fleet.tend()
        time.sleep(POLL_S)


def flush(units: int, seed: int = 0) -> tuple[Figure, list[Violation]]:
    """So many units queued, Valkey flushed or not, and then the evaluators start: how much longer it takes."""
    with fleet_of(Options(seed=seed, judge_s=0.2)) as (fleet, journal):
        fleet.provider.longest_s = 0.1
        calm_s = _drained(fleet, journal, units, seed, lambda: None)
        flushed_s = _drained(fleet, journal, units, seed + 1, lambda: _flush(fleet))
        with fleet.database.connect() as connection:
            violations = [*check_rows(connection, PRICE_USD), *check_told(connection, journal)]
    added_s = flushed_s - calm_s
    figure = {
        "figure": "flush",
        "units": units,
        "calm_s": round(calm_s, 1),
        "flushed_s": round(flushed_s, 1),
        "added_s": round(added_s, 1),
        "must_be_under_s": MOST_ADDED_S,
    }
    late = [figure] if added_s > MOST_ADDED_S else []
    return figure, [*violations, *violation("a flush costs latency only", "the added latency is too long", late)]


def _drained(fleet: Fleet, journal: Journal, units: int, seed: int, then: Callable[[], None]) -> float:
    """Queue the units while no evaluator runs; do something to Valkey; start them;
    the seconds until all is done."""
    fleet.hold(EVALUATING)
    # Without an evaluator a job has two candidates in flight: one for the first that comes, one to be made meanwhile.
    jobs = units // 2
    loading = time.monotonic()
    with load(fleet, journal, seed=seed, jobs=jobs, in_flight=jobs, candidates=2) as clients:
        while _queued(fleet) < units:
            _check_time(loading, f"{units} units are queued")
            fleet.tend()
            time.sleep(POLL_S)
        then()
        fleet.release()
        began = time.monotonic()
        while not (clients.over and settled(fleet)):
            _check_time(began, "all units are done")
            fleet.tend()
            time.sleep(POLL_S)
        return time.monotonic() - began


def _check_time(began: float, what: str, longest_s: float = LONGEST_S) -> None:
    if time.monotonic() - began > longest_s:
        raise TimeoutError(f"waited in vain: {what}")


def _queued(fleet: Fleet) -> int:
    query = text("SELECT count(*) FROM work WHERE state = 'queued' AND queue = 'cpu'")
    with fleet.database.connect() as connection:
        return int(connection.execute(query).scalar_one())


def _flush(fleet: Fleet) -> None:
    with fleet.broker() as broker:
        broker.flushall()
