"""Fill an empty, migrated database with the history of a busy service: jobs, candidates, work, calls, events.

    KERNELWRIGHT_DATABASE_URL=postgresql://... python -m benchmarks.load.fill --jobs 100000 --candidates 1000000

The rows are made by Postgres itself (`generate_series`), a batch of jobs at a time; they are spread over 90 days, the
newest 1,200 jobs are live (200 run and are ten minutes old, the rest wait), a tenth of the evaluations has a report.
Nothing of it is ever run: use a database that no worker looks at.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, text

from db.session import make_engine
from db.settings import get_settings
from db.statements import load_statements

STATEMENT_TIMEOUT_S: Final = 3600.0
BATCH: Final = 10_000
"""Jobs of one transaction: what it writes stays far below a gigabyte."""
PARTS: Final = ("jobs", "candidates", "evaluations", "work", "llm_calls", "events", "certificates", "kernels")

SQL: Final = load_statements(Path(__file__).with_name("fill.sql"))


class NotEmpty(RuntimeError):
    """This database has jobs already. Fill one that is only for measuring: `createdb load && kernelwright migrate`."""

    def __str__(self) -> str:
        return str(self.__doc__)


def fill(engine: Engine, *, jobs: int, candidates: int) -> Mapping[str, float]:
    """Make the rows, and statistics of them for the planner. Returns the seconds that each table took.

    Raises:
        NotEmpty: there are jobs already.
    """
    took_s = dict.fromkeys(PARTS, 0.0)
    each = max(1, candidates // jobs)
    with engine.begin() as connection:
        if connection.scalar(text("SELECT EXISTS (SELECT FROM jobs)")):
            raise NotEmpty
        connection.execute(SQL["problems"])
    for first in range(1, jobs + 1, BATCH):
        numbers = {"first": first, "last": min(first + BATCH - 1, jobs), "jobs": jobs, "each": each}
        with engine.begin() as connection:
            for part in PARTS:
                begun = time.monotonic()
                connection.execute(SQL[part], numbers)
                took_s[part] += time.monotonic() - begun
    with engine.begin() as connection:
        connection.execute(SQL["workers"])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        begun = time.monotonic()
        connection.execute(text("VACUUM ANALYZE"))
        # Or gigabytes that a year's use would have written long ago are written while the load is measured.
        connection.execute(text("CHECKPOINT"))
        took_s["vacuum"] = time.monotonic() - begun
    return took_s


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Fill an empty, migrated database with the history of a busy service.")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--candidates", type=int, default=1_000_000)
    arguments = parser.parse_args()
    engine = make_engine(
        get_settings().sqlalchemy_url, "kernelwright-fill", statement_timeout_s=STATEMENT_TIMEOUT_S, pooled=False
    )
    took_s = fill(engine, jobs=arguments.jobs, candidates=arguments.candidates)
    for part, seconds in took_s.items():
        sys.stdout.write(f"{part}\t{seconds:.1f} s\n")


if __name__ == "__main__":
    main()
