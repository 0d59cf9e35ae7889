"""What grows while a fleet works: samples of memory, handles, connections and tables, and the bounds they must keep.

The bounds are for an hour at a steady load. Slopes are Theil and Sen's (the median of the slopes of all pairs), which a
garbage collection or a checkpoint in the wrong moment does not move; levels are medians of first and last quarters.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.chaos.checker.violations import Violation, violation
from tests.chaos.signals import tree

_T = TypeVar("_T")

MIB: Final = 1 << 20
MEMORY_BYTES_PER_H: Final = 24 * MIB
MEMORY_SHARE_PER_H: Final = 0.10
"""A program may grow by the larger of the two."""
VALKEY_BYTES_PER_H: Final = 16 * MIB
HANDLES: Final = 8
"""Of one program: open files and threads."""
CONNECTIONS: Final = 4
FILES: Final = 16
DEAD_SHARE: Final = 0.35
"""Of a table's rows, where it has `LARGE_TABLE_BYTES`: autovacuum begins at 20 % and comes once a minute."""
BYTES_PER_ROW_FACTOR: Final = 1.5
LARGE_TABLE_BYTES: Final = 2 * MIB
SETTLED_AGE_S: Final = 60.0
"""Younger processes (a runner, a build) come and go; what leaks stays."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its indexes and its large values."""

    bytes: int
    live: int
    dead: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a fleet at one moment."""

    at_s: float
    memory: Mapping[str, int] = field(default_factory=dict)
    """Private bytes by program, of all its settled processes."""
    handles: Mapping[str, int] = field(default_factory=dict)
    """Open files and threads by program."""
    connections: Mapping[str, int] = field(default_factory=dict)
    """To Postgres and to Valkey."""
    valkey_bytes: int = 0
    files: int = 0
    """In the scratch folder, and shared memory segments."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    jobs: int = 0
    """That have ended so far."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)


def settled_processes(pid: int) -> list[int]:
    """The process and those below it that have been there for a minute."""
    return [each for each in tree(pid) if _age_s(each) > SETTLED_AGE_S]


def memory(pids: Iterable[int]) -> int:
    """Anonymous memory in bytes, shared pages divided by their owners."""
    return sum(_anonymous(pid) for pid in pids)


def handles(pids: Iterable[int]) -> int:
    """Open files and threads."""
    return sum(_entries(pid, "fd") + _entries(pid, "task") for pid in pids)


def check(samples: Sequence[Sample]) -> list[Violation]:
    """What grew beyond its bound. `samples`: of a steady load, the warm-up left out."""
    grown = [f"{what}: {_words(value)} where {_words(bound)} is allowed" for what, value, bound in growths(samples)
             if value > bound]  # fmt: skip
    return violation("nothing grows but what is stored", "something grew beyond its bound", grown)


def growths(samples: Sequence[Sample]) -> Iterator[tuple[str, float, float]]:
    """What was looked at, how much it grew, and its bound."""
    for name in sorted(set.intersection(*(set(each.memory) for each in samples))):
        held = [each.memory[name] for each in samples]
        bound = max(MEMORY_BYTES_PER_H, MEMORY_SHARE_PER_H * statistics.median(held))
        yield f"memory of {name}, bytes per hour", _per_hour(samples, held), bound
        yield f"files and threads of {name}", _step([each.handles[name] for each in samples]), HANDLES
    for name in samples[0].connections:
        yield f"connections to {name}", _step([each.connections[name] for each in samples]), CONNECTIONS
    yield "Valkey, bytes per hour", _per_hour(samples, [each.valkey_bytes for each in samples]), VALKEY_BYTES_PER_H
    yield "temporary files and shared memory", _step([each.files for each in samples]), FILES
    yield from _bloat(samples)


def _bloat(samples: Sequence[Sample]) -> Iterator[tuple[str, float, float]]:
    for name, last in samples[-1].tables.items():
        if last.bytes < LARGE_TABLE_BYTES:
            continue
        rows = [each.tables[name] for each in samples]
        dead = _last([100.0 * each.dead / max(1, each.dead + each.live) for each in rows])
        yield f"dead rows of {name}, percent", dead, 100 * DEAD_SHARE
        first, now = ([each.bytes / max(1, each.live) for each in part] for part in (_quarters(rows)))
        ratio = statistics.median(now) / statistics.median(first)
        yield f"bytes per row of {name}, ratio", ratio, BYTES_PER_ROW_FACTOR


def _per_hour(samples: Sequence[Sample], values: Sequence[float]) -> float:
    points = list(zip((each.at_s for each in samples), values, strict=True))
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(points, 2) if t > s]
    return 3600 * statistics.median(slopes) if slopes else 0.0


def _step(values: Sequence[float]) -> float:
    first, last = _quarters(values)
    return statistics.median(last) - statistics.median(first)


def _last(values: Sequence[float]) -> float:
    return statistics.median(_quarters(values)[1])


def _quarters(values: Sequence[_T]) -> tuple[Sequence[_T], Sequence[_T]]:
    quarter = max(1, len(values) // 4)
    return values[:quarter], values[-quarter:]


def _words(value: float) -> str:
    return f"{value / MIB:.1f} MiB" if abs(value) > 64 * 1024 else f"{value:.2f}"


def _age_s(pid: int) -> float:
    with suppress(OSError):
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / _TICKS_PER_S
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    return 0.0


def _anonymous(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    return 0


def _entries(pid: int, what: str) -> int:
    with suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/{what}").iterdir())
    return 0
