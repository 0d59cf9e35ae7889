"""All candidates of the service, oldest first, for whoever takes them away: pages bounded in rows, bytes and work.

A page looks at no more than `WINDOW` candidates: a filter that almost nothing passes makes short or empty pages, and
never a statement that reads the whole table. The order is that of the ids, which are made of the time (`db.ids`), so
the primary key is the only index needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, column, func, literal, null, select, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session, defer

from db.listing import CandidateRow
from db.models import Candidate, Certificate, Evaluation, Job, LlmCall
from db.paging import InvalidCursor, Page, decode_cursor, encode_cursor
from db.proposals import CALL_KEY
from db.recording_models import Ask
from db.vocabulary import LlmCallState

WINDOW: Final = 5_000
"""Candidates that one page looks at, most. A verdict that none of 100,000 has: 20 pages of 90 ms on two busy cores."""
PAGE_BYTES: Final = 4 << 20
"""Of what is stored compressed (reports) and of sources in one page, about; JSON makes five times as much of it."""
SKEW: Final = timedelta(hours=1)
"""An id has the clock of the machine that made it, `created_at` that of Postgres. Nobody's is this wrong."""

SOURCE, WORKLOADS, PROFILE = "source", "workloads", "profile"
PARTS: Final = (SOURCE, WORKLOADS, PROFILE)

_REPORTED: Final = ("baselines_us", "speedups", "workloads", "profile", "checks", "log")
"""What is read of a report. One statement takes it apart once, so that a large one is decompressed once."""


@dataclass(frozen=True, slots=True)
class ArchiveFilter:
    """Which candidates; None means any."""

    job_id: str | None = None
    problem: str | None = None
    hardware: str | None = None
    language: str | None = None
    verdict: str | None = None
    created_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    """A candidate with what is stored about it elsewhere."""

    found: CandidateRow
    """Without the source and the report, which are large."""
    job: Job
    source: str | None
    """None also where it was not asked for."""
    source_bytes: int | None
    reported: Mapping[str, Any]
    """Parts of the judge's report; empty without an evaluation."""
    certificate_id: str | None
    certified: bool | None
    tokens_in: int | None
    tokens_out: int | None
    prompt_version: str | None


def list_archive(
    session: Session,
    where: ArchiveFilter,
    parts: Collection[str] = (),
    *,
    limit: int,
    cursor: str | None = None,
) -> Page[ArchiveRow]:
    """A page of candidates by id; it may be short, or empty, and still not be the last. Raises InvalidCursor."""
    after = None if cursor is None else _id_in(cursor)
    edge = session.scalar(_window(where, after).offset(WINDOW - 1).limit(1))
    sized = session.execute(_sizes(where, after, edge, parts).limit(limit + 1)).all()
    taken = _fitting([size for _id, size in sized[:limit]])
    last = sized[taken - 1].id if taken < len(sized) else edge
    rows = _rows(session, [each.id for each in sized[:taken]], parts)
    return Page(rows, None if last is None else encode_cursor(last))


def _id_in(cursor: str) -> str:
    (last,) = decode_cursor(cursor, 1)
    if not isinstance(last, str) or "\0" in last:
        raise InvalidCursor
    return last


def _fitting(sizes: list[int]) -> int:
    """How many rows from the first on make a page: at least one, however large."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > PAGE_BYTES:
            return count
    return len(sizes)


def _window(where: ArchiveFilter, after: str | None) -> Select[str]:
    return select(Candidate.id).where(*_range(where, after)).order_by(Candidate.id)


def _range(where: ArchiveFilter, after: str | None) -> list[ColumnElement[bool]]:
    """What an index bounds: where in the order of ids, and which job."""
    found = [] if where.job_id is None else [Candidate.job_id == where.job_id]
    if after is not None:
        found.append(Candidate.id > after)
    elif where.created_after is not None:
        found.append(Candidate.id >= _least_id(where.created_after))
    return found


def _least_id(created_after: datetime) -> str:
    """No candidate that was made after this moment has a smaller id."""
    milliseconds = max(0, int(created_after.timestamp() - SKEW.total_seconds()) * 1000)
    return f"cand_{milliseconds:012x}"


def _sizes(where: ArchiveFilter, after: str | None, edge: str | None, parts: Collection[str]) -> Select[str, int]:
    size: ColumnElement[int] = literal(512)
    if SOURCE in parts:
        size = size + func.coalesce(func.octet_length(Candidate.source), 0)
    if {WORKLOADS, PROFILE} & set(parts):
        size = size + func.coalesce(func.pg_column_size(Evaluation.report), 0)
    query = select(Candidate.id, size.label("size")).outerjoin(Evaluation, Evaluation.candidate_id == Candidate.id)
    query = query.where(*_range(where, after)).order_by(Candidate.id)
    if edge is not None:
        query = query.where(Candidate.id <= edge)
    if where.verdict is not None:
        query = query.where(Evaluation.verdict == where.verdict)
    if where.created_after is not None:
        query = query.where(Candidate.created_at > where.created_after)
    of_job = {Job.problem_name: where.problem, Job.hardware: where.hardware, Job.language: where.language}
    if any(wanted is not None for wanted in of_job.values()):
        query = query.join(Job, Job.id == Candidate.job_id)
        query = query.where(*(each == wanted for each, wanted in of_job.items() if wanted is not None))
    return query


def _rows(session: Session, ids: list[str], parts: Collection[str]) -> tuple[ArchiveRow, ...]:
    if not ids:
        return ()
    named = [name for name in _REPORTED if name not in PARTS or name in parts]
    record = func.jsonb_to_record(Evaluation.report).table_valued(*(column(name, JSONB) for name in named))
    report = record.render_derived(name="report", with_types=True)
    paid = and_(
        LlmCall.candidate_id == Candidate.id, LlmCall.key == CALL_KEY, LlmCall.state == LlmCallState.FINISHED.value
    )
    query = (
        select(
            Candidate,
            Evaluation,
            Job,
            Candidate.source if SOURCE in parts else null(),
            func.octet_length(Candidate.source),
            Certificate.id,
            Certificate.certified,
            LlmCall.tokens_in,
            LlmCall.tokens_out,
            func.coalesce(LlmCall.prompt_version, Ask.prompt_version),
            *(report.c[name] for name in named),
        )
        .join(Job, Job.id == Candidate.job_id)
        .outerjoin(Evaluation, Evaluation.candidate_id == Candidate.id)
        .outerjoin(report, true())
        .outerjoin(Certificate, Certificate.candidate_id == Candidate.id)
        .outerjoin(LlmCall, paid)
        .outerjoin(Ask, Ask.candidate_id == Candidate.id)
        .where(Candidate.id.in_(ids))
        .order_by(Candidate.id)
        .options(defer(Candidate.source, raiseload=True), defer(Evaluation.report, raiseload=True))
    )
    return tuple(_row(named, *row) for row in session.execute(query))


def _row(named: list[str], candidate: Candidate, evaluation: Evaluation | None, job: Job, *rest: Any) -> ArchiveRow:
    alone, reported = rest[: -len(named)], rest[-len(named) :]
    return ArchiveRow(
        CandidateRow(candidate, evaluation),
        job,
        alone[0],
        alone[1],
        {name: value for name, value in zip(named, reported, strict=True) if value is not None},
        *alone[2:],
    )
