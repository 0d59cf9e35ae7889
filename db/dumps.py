"""A job that has ended as text, and back into another database: how kernels and what was learned with them travel.

A document is a line that says what it is, and a line for each row: the table's name, a tab, and the row as Postgres
writes it. No number passes through Python, since a certificate's hash is over the text of its numbers. What is of one
deployment alone (API keys, work, prompts, calls) is not in it. Events get numbers of the new database, in their order.

What is carried in is taught like any other job that ended: lessons, and which kernel of a problem is current, follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from db.finishing import enqueue_learn

HEADER: Final = "kernelwright job 1"

_JOB: Final = "job_id = :job_id"
_ROWS: Final[Mapping[str, str]] = {
    "problems": "hash = (SELECT problem_hash FROM jobs WHERE id = :job_id)",
    "jobs": "id = :job_id",
    "candidates": f"{_JOB} ORDER BY duplicate_of IS NOT NULL, ordinal",
    "evaluations": f"{_JOB} ORDER BY id",
    "tunings": f"{_JOB} ORDER BY candidate_id",
    "certificates": f"{_JOB} ORDER BY id",
    "kernels": _JOB,
    "events": f"{_JOB} ORDER BY seq",
}
"""Which rows of which tables, in the order in which they can be inserted."""

_LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    "jobs": frozenset({"key_id", "parent_id", "admission_id", "traceparent"}),
    "kernels": frozenset({
        "op_family", "hardware_kin", "bound", "params", "title", "story", "terms", "terms_vector", "embedder",
        "embedding", "current",
    }),
    "evaluations": frozenset({"worker_id"}),
    "events": frozenset({"seq"}),
}  # fmt: skip
"""Columns that name rows that stay behind, or that the new database finds out for itself."""

_COLUMNS: Final = text(
    "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = :name"
)


class NotAJob(Exception):
    """This is no dump of a job: {reason}. Write one with `kernelwright dump JOB --out FILE`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.__doc__).format(reason=self.reason)


def dump_job(session: Session, job_id: str) -> Iterator[str]:
    """The job's document, line by line. Raises LookupError: there is no such job, or it has not ended."""
    ended = session.scalar(text("SELECT finished_at IS NOT NULL FROM jobs WHERE id = :job_id"), {"job_id": job_id})
    if not ended:
        raise LookupError(f"{job_id} has not ended" if ended is False else f"there is no {job_id}")
    yield f"{HEADER}\t{job_id}"
    for table, where in _ROWS.items():
        columns = ", ".join(f'"{name}"' for name in _columns(session, table))
        rows = text(f"SELECT row_to_json(kept)::text FROM (SELECT {columns} FROM {table} WHERE {where}) AS kept")  # noqa: S608 - names of ours and of the schema
        for row in session.scalars(rows, {"job_id": job_id}):
            yield f"{table}\t{row}"


def load_job(session: Session, lines: Iterator[str]) -> bool:
    """Store the job of a document; False when it is here already.

    Raises:
        NotAJob: this is something else, or it was cut off.
    """
    job_id = read_header(next(lines, ""))
    if known_jobs(session, [job_id]):
        return False
    known = {table: _columns(session, table) for table in _ROWS}
    seen = set()
    for line in lines:
        table, _, row = line.rstrip("\n").partition("\t")
        if table not in known:
            raise NotAJob(f"it has rows of {table[:40]!r}")
        seen.add(table)
        _insert(session, table, known[table], row)
    if not {"problems", "jobs", "candidates", "events"} <= seen:
        raise NotAJob("it was cut off")
    enqueue_learn(session, job_id)
    return True


def known_jobs(session: Session, job_ids: Iterable[str]) -> set[str]:
    """Those of the jobs that are here already."""
    return set(session.scalars(text("SELECT id FROM jobs WHERE id = ANY(:ids)"), {"ids": list(job_ids)}))


def read_header(line: str) -> str:
    """The job's id. Raises NotAJob."""
    header, _, job_id = line.rstrip("\n").partition("\t")
    if header != HEADER or not job_id:
        raise NotAJob("its first line is another one")
    return job_id


def _columns(session: Session, table: str) -> list[str]:
    found = session.scalars(_COLUMNS, {"name": table})
    return sorted(set(found) - _LEFT_OUT.get(table, frozenset()))


def _insert(session: Session, table: str, known: list[str], row: str) -> None:
    """Insert what both sides know: what a newer schema has beside it takes its defaults."""
    given = set(session.scalars(text("SELECT json_object_keys(CAST(:row AS json))"), {"row": row}))
    columns = ", ".join(f'"{name}"' for name in known if name in given)
    again = " ON CONFLICT DO NOTHING" if table == "problems" else ""
    statement = (
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM json_populate_record(NULL::{table}, CAST(:row AS json))"
    )
    session.execute(text(statement + again), {"row": row})
