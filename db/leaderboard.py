"""Leaderboards: the champions of ended jobs, ranked for each problem's source and target, and who is not among them.

The ranking is one statement (`db/leaderboard.sql`); nothing else in the service decides who comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Row
from sqlalchemy.orm import Session

from db.statements import load_statements

LEFT_OUT: Final = 10
"""So many of the fastest that are not on a board are named."""

SQL: Final = load_statements(Path(__file__).with_name("leaderboard.sql"))


class BoardKey(NamedTuple):
    """What is comparable: the same source of the problem, on the same hardware, in the same language."""

    problem_hash: str
    hardware: str
    language: str


@dataclass(frozen=True, slots=True)
class Board:
    """The champions by rank, and the candidates that were faster than the first of them and are none."""

    key: BoardKey
    entries: Sequence[Mapping[str, Any]]
    left_out: Sequence[Mapping[str, Any]]


def leaderboards(
    session: Session, problem: str, *, hardware: str | None = None, language: str | None = None, places: int = 20
) -> list[Board]:
    """The boards of every source that was searched under this name, by source, hardware and language."""
    wanted = {"problem": problem, "hardware": hardware, "language": language}
    entries = _by_board(session.execute(SQL["ranking"], wanted | {"places": places}).all())
    others = _by_board(session.execute(SQL["left_out"], wanted).all())
    keys = sorted({*entries, *others})
    return [Board(key, entries.get(key, []), _faster(others.get(key, []), entries.get(key, []))) for key in keys]


def is_searched(session: Session, problem: str) -> bool:
    """Whether any job ever searched a problem of this name."""
    return bool(session.scalar(SQL["known"], {"problem": problem}))


def _by_board(rows: Sequence[Row[Any]]) -> dict[BoardKey, list[Mapping[str, Any]]]:
    boards: dict[BoardKey, list[Mapping[str, Any]]] = {}
    for row in rows:
        boards.setdefault(BoardKey(row.problem_hash, row.hardware, row.language), []).append(dict(row._mapping))
    return boards


def _faster(others: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    first = entries[0]["speedup"] if entries else 0.0
    return [each for each in others if each["speedup"] > first][:LEFT_OUT]
