"""What the service stands: requests at a rate, watchers, doorbells and dashboards, with a year's use stored.

    python -m benchmarks.load                    # a million candidates: 4 GB under $TMPDIR, six minutes
    python -m benchmarks.load --quick            # 100,000 candidates: under five minutes
    python -m benchmarks.load --only polls --only submits --out load-figures.json

The API, Postgres, Valkey and the load generator share the machine. Run it with nothing else on it: other work shows in
the 99th percentiles at once. Returns 1 when a figure is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.load.doorbell import doorbell
from benchmarks.load.pace import Latencies
from benchmarks.load.polls import polls
from benchmarks.load.reads import reads
from benchmarks.load.service import Service, filled_service
from benchmarks.load.submits import submits
from benchmarks.load.watchers import watchers


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure beside what it must be below."""

    name: str
    value: float
    limit: float | None = None
    unit: str = "ms"

    @property
    def met(self) -> bool:
        """Whether it is within its limit, if it has one."""
        return self.limit is None or self.value <= self.limit

    def row(self) -> str:
        """As a line."""
        limit = "" if self.limit is None else f"  must be {self.limit:g}: {'met' if self.met else 'MISSED'}"
        return f"{self.name:58} {self.value:9.1f} {self.unit}{limit}"


def main() -> int:
    """Fill, serve, load, print."""
    options = _options()
    jobs, candidates, seconds = (10_000, 100_000, 8.0) if options.quick else (100_000, 1_000_000, 30.0)
    figures: list[Figure] = []
    rows = {"jobs": options.jobs or jobs, "candidates": options.candidates or candidates}
    with filled_service(**rows, processes=options.processes) as service:
        for name, measure in _measurements(seconds).items():
            if options.only and name not in options.only:
                continue
            for figure in measure(service):
                figures.append(figure)
                sys.stdout.write(figure.row() + "\n")
                sys.stdout.flush()
    if options.out:
        options.out.write_text(
            json.dumps([asdict(figure) | {"met": figure.met} for figure in figures], indent=1) + "\n"
        )
    return int(not all(figure.met for figure in figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, shorter loads")
    parser.add_argument("--only", action="append", choices=list(_measurements(1.0)), help="may be repeated")
    parser.add_argument("--processes", type=int, default=2, help="of the API, on one port")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--candidates", type=int)
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    return parser.parse_args()


def _measurements(seconds: float) -> Mapping[str, Callable[[Service], Iterator[Figure]]]:
    """In this order: what is submitted makes the queue longer for what comes after."""
    return {
        "reads": _reads,
        "polls": lambda service: _loaded("job poll with its tag, 500/s", asyncio.run(polls(service, seconds)), 25),
        "watchers": lambda service: _watched(service, seconds),
        "doorbell": lambda service: _doorbell(service, int(seconds * 10)),
        "submits": lambda service: _submitted(service, seconds),
    }


def _loaded(name: str, latencies: Latencies, limit_ms: float | None) -> Iterator[Figure]:
    yield Figure(f"{name}: p50", latencies.median)
    yield Figure(f"{name}: p99", latencies.percentile(99), limit_ms)
    yield Figure(f"{name}: answers a second", latencies.per_s, unit="/s")
    yield Figure(f"{name}: the API's CPU time for one", latencies.cpu_ms)


def _submitted(service: Service, seconds: float) -> Iterator[Figure]:
    for per_s, limit_ms in ((25, None), (50, None), (100, 50)):
        yield from _loaded(f"submit, {per_s}/s", asyncio.run(submits(service, seconds, per_s)), limit_ms)


def _watched(service: Service, seconds: float) -> Iterator[Figure]:
    for jobs in (50, 1):
        found, missed, wrong = asyncio.run(watchers(service, seconds, jobs=jobs))
        name = f"500 watchers of {jobs} job{'s' if jobs > 1 else ''}, 50 events/s"
        yield Figure(f"{name}: delivery p50", found.median)
        yield Figure(f"{name}: delivery p99", found.percentile(99), 500)
        yield Figure(f"{name}: missed", missed, 0, unit="")
        yield Figure(f"{name}: repeated or out of order", wrong, 0, unit="")
        yield Figure(f"{name}: deliveries a second", found.per_s, unit="/s")


def _doorbell(service: Service, count: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="load-worker-") as scratch:
        found = doorbell(service, count, Path(scratch))
    yield Figure("doorbell, idle fleet: p50", found.median, 20)
    yield Figure("doorbell, idle fleet: p99", found.percentile(99), 100)


def _reads(service: Service) -> Iterator[Figure]:
    for name, found in reads(service):
        yield Figure(f"{name}: p50", found.median)
        yield Figure(f"{name}: p95", found.percentile(95), 60 if name in ("summary", "50 jobs") else None)


if __name__ == "__main__":
    sys.exit(main())
