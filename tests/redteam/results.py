"""Results in a file: a JSON list that grows by one line per candidate, so that a run that was stopped can go on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tests.redteam.entry import Entry
from tests.redteam.runner import Outcome
from worker.judge.version import judge_hash

_END = b"\n]\n"


class Results:
    """The file. `add` leaves a whole JSON list behind every time."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self.rows = _read(path) if resume and path.exists() else []
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        path.write_bytes(b"[\n" + lines.encode() + _END)

    def add(self, outcome: Outcome) -> None:
        """Append one result."""
        row = outcome.to_json() | {"source_sha256": _hash(outcome.entry), "judge_sha256": judge_hash()}
        with self._path.open("r+b") as file:
            file.seek(-len(_END), os.SEEK_END)
            file.write((b",\n" if self.rows else b"") + json.dumps(row).encode() + _END)
        self.rows.append(row)

    def known(self, entries: list[Entry]) -> list[Outcome]:
        """Results of these entries, unless the candidate has changed since or the machine failed."""
        rows = {row["entry"]["id"]: row for row in self.rows}
        found = []
        for entry in entries:
            row = rows.get(entry.id)
            if row and row["source_sha256"] == _hash(entry) and row["verdict"] != "infra_error":
                found.append(Outcome.from_json(entry, row))
        return found

    def other_judges(self) -> int:
        """How many of the rows another version of the judge's code made."""
        return sum(row["judge_sha256"] != judge_hash() for row in self.rows)


def _read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines()[1:]:
        try:
            row = json.loads(line.removesuffix(","))
        except ValueError:
            continue
        if isinstance(row, dict) and "source_sha256" in row:
            rows.append(row)
    latest = {row["entry"]["id"]: row for row in rows}
    return list(latest.values())


def _hash(entry: Entry) -> str:
    return hashlib.sha256(entry.source.encode()).hexdigest()
