"""Pools: really evaluated programs of a problem with their lineage, one JSON line each, in `benchmarks/data`.

While a pool is recorded its lines are appended to `<problem>.jsonl`; `pack` compresses it to `<problem>.jsonl.gz`.
Sources are not stored: the generator makes them again from the genome; `source` (a hash) says whether it still does.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.policy.genome import Genome

DATA = Path(__file__).resolve().parents[1] / "data" / "policy"


@dataclass(frozen=True, slots=True)
class Record:
    """One program as it was judged."""

    id: int
    """Its place in the pool."""
    operator: str
    parents: tuple[int, ...]
    genome: Genome
    source: str
    """Hash of the source (`fingerprint`)."""
    verdict: str
    reason: str
    speedup: float | None
    """Against eager, interleaved round by round."""
    ci95: tuple[float, float] | None
    latency_us: float | None
    baseline_us: float | None
    sol_fraction: float | None
    device_s: float
    """Seconds for which the judge held the device."""
    build_s: float
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether the judge accepted and timed it."""
        return self.verdict == "ok" and self.speedup is not None

    def to_json(self) -> dict[str, Any]:
        """The line; `from_json` reads it."""
        return asdict(self)

    @staticmethod
    def from_json(line: dict[str, Any]) -> Record:
        """What `to_json` gave."""
        genome = line["genome"]
        pairs = {name: tuple((key, value) for key, value in genome[name]) for name in ("structure", "tunables")}
        made = Genome(genome["problem"], pairs["structure"], pairs["tunables"], tuple(genome["bugs"]))
        interval = line["ci95"]
        return Record(
            **line
            | {
                "genome": made,
                "parents": tuple(line["parents"]),
                "ci95": None if interval is None else (interval[0], interval[1]),
            }
        )


def fingerprint(source: str) -> str:
    """16 hexadecimal digits of the SHA-256 of a source with its white space squeezed."""
    return hashlib.sha256(" ".join(source.split()).encode()).hexdigest()[:16]


def read(path: Path) -> list[Record]:
    """All records of a file, compressed or not. A last line that was cut off is left out."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    whole, _, _cut = data.rpartition(b"\n")
    return [Record.from_json(json.loads(line)) for line in whole.splitlines()]


def load(problem: str, folder: Path = DATA) -> list[Record]:
    """The packed pool of a problem."""
    return read(folder / f"{problem}.jsonl.gz")


def pack(problem: str, source: Path, folder: Path = DATA) -> Path:
    """Compress a recorded pool into the folder; the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{problem}.jsonl.gz"
    lines = "".join(json.dumps(record.to_json()) + "\n" for record in read(source))
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))  # no date: equal pools make equal files
    return path


def packed(folder: Path = DATA) -> Sequence[str]:
    """The problems that have a packed pool."""
    return sorted(path.name.removesuffix(".jsonl.gz") for path in folder.glob("*.jsonl.gz"))


def failures(records: Iterable[Record]) -> dict[str, float]:
    """By operator: the share of its programs that the judge did not accept."""
    counts: dict[str, list[bool]] = {}
    for record in records:
        counts.setdefault(record.operator, []).append(not record.ok)
    return {operator: sum(failed) / len(failed) for operator, failed in counts.items()}
