"""A violation, and how the checks are written: a query whose every row is a violation, and a sentence for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

MOST_ROWS = 5
"""Shown of each violation; the count says how many there are."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never be: which invariant, one sentence, and the rows that show it."""

    invariant: str
    sentence: str
    rows: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For the results file."""
        return {"invariant": self.invariant, "sentence": self.sentence, "rows": list(self.rows)}

    def __str__(self) -> str:
        return "\n".join([f"{self.invariant}: {self.sentence}", *(f"    {row}" for row in self.rows)])


@dataclass(frozen=True, slots=True)
class Rule:
    """An invariant as a query for what breaks it. The sentence is about one or more rows."""

    invariant: str
    sentence: str
    query: str


def violation(invariant: str, sentence: str, rows: Iterable[Any]) -> list[Violation]:
    """One violation with its first rows; none where there are no rows."""
    found = [str(row) for row in rows]
    if not found:
        return []
    return [Violation(invariant, f"{len(found)} x {sentence}", tuple(found[:MOST_ROWS]))]


def broken(connection: Connection, rules: Iterable[Rule], **parameters: Any) -> list[Violation]:
    """What of these rules is broken."""
    found: list[Violation] = []
    for rule in rules:
        rows: list[Mapping[str, Any]] = [
            dict(row) for row in connection.execute(text(rule.query), parameters).mappings()
        ]
        found += violation(rule.invariant, rule.sentence, rows)
    return found
