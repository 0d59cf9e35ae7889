"""Lists by keyset: jobs newest first, candidates by ordinal or by speedup. A row is seen once, whatever is inserted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, and_, or_, select, tuple_
from sqlalchemy.orm import Session

from db.models import Candidate, Evaluation, Job
from db.paging import InvalidCursor, Page, decode_cursor, encode_cursor, number_in
from db.vocabulary import JobState

Sort = Literal["ordinal", "-ordinal", "-speedup"]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; None and empty mean any."""

    state: str | None = None
    problem: str | None = None
    hardware: str | None = None
    language: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A candidate with its evaluation, where it has one."""

    candidate: Candidate
    evaluation: Evaluation | None


def list_jobs(
    session: Session, where: JobFilter | None = None, *, limit: int = 50, cursor: str | None = None
) -> Page[Job]:
    """Jobs, newest first. Raises InvalidCursor."""
    query = _filtered(where or JobFilter()).order_by(Job.created_at.desc(), Job.id.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(tuple_(Job.created_at, Job.id) < _position(cursor))
    rows = session.scalars(query).all()
    last = rows[limit - 1] if len(rows) > limit else None
    following = encode_cursor(last.created_at.isoformat(), last.id) if last is not None else None
    return Page(tuple(rows[:limit]), following)


def _filtered(where: JobFilter) -> Select[Job]:
    query = select(Job)
    equal = {
        Job.state: where.state,
        Job.problem_name: where.problem,
        Job.hardware: where.hardware,
        Job.language: where.language,
    }
    for column, wanted in equal.items():
        if wanted is not None:
            query = query.where(column == wanted)
    if where.state is not None and not JobState(where.state).terminal:
        # Said for the planner: few jobs are live, and a partial index has them.
        query = query.where(Job.finished_at.is_(None))
    if where.labels:
        query = query.where(Job.labels.contains(dict(where.labels)))
    if where.created_after is not None:
        query = query.where(Job.created_at > where.created_after)
    return query


def _position(cursor: str) -> tuple[datetime, str]:
    created_at, job_id = decode_cursor(cursor, 2)
    try:
        return datetime.fromisoformat(str(created_at)), str(job_id)
    except ValueError as error:
        raise InvalidCursor from error


def get_candidate(session: Session, candidate_id: str) -> CandidateRow | None:
    """A candidate with its evaluation."""
    row = session.execute(_with_evaluation().where(Candidate.id == candidate_id)).one_or_none()
    return None if row is None else CandidateRow(row[0], row[1])


def list_candidates(
    session: Session,
    job_id: str,
    *,
    verdict: str | None = None,
    state: str | None = None,
    sort: Sort = "ordinal",
    limit: int = 50,
    cursor: str | None = None,
) -> Page[CandidateRow]:
    """A page of a job's candidates. `-speedup` puts the fastest first and those without a speedup last.

    Raises InvalidCursor.
    """
    query = _with_evaluation().where(Candidate.job_id == job_id)
    if verdict is not None:
        query = query.where(Evaluation.verdict == verdict)
    if state is not None:
        query = query.where(Candidate.state == state)
    if cursor is not None:
        query = query.where(_beyond(sort, cursor))
    query = query.order_by(*_order(sort)).limit(limit + 1)
    rows = [CandidateRow(row[0], row[1]) for row in session.execute(query)]
    following = _cursor_of(sort, rows[limit - 1]) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), following)


def _with_evaluation() -> Select[Candidate, Evaluation]:
    return select(Candidate, Evaluation).outerjoin(Evaluation, Evaluation.candidate_id == Candidate.id)


def _order(sort: Sort) -> tuple[ColumnElement[Any], ...]:
    if sort == "-speedup":
        return Evaluation.speedup.desc().nulls_last(), Candidate.ordinal.asc()
    return (Candidate.ordinal.desc() if sort == "-ordinal" else Candidate.ordinal.asc(),)


def _cursor_of(sort: Sort, last: CandidateRow) -> str:
    if sort == "-speedup":
        return encode_cursor(last.evaluation.speedup if last.evaluation else None, last.candidate.ordinal)
    return encode_cursor(last.candidate.ordinal)


def _beyond(sort: Sort, cursor: str) -> ColumnElement[bool]:
    if sort == "ordinal":
        return Candidate.ordinal > number_in(decode_cursor(cursor, 1)[0])
    if sort == "-ordinal":
        return Candidate.ordinal < number_in(decode_cursor(cursor, 1)[0])
    speedup, last = decode_cursor(cursor, 2)
    ordinal = number_in(last)
    if speedup is None:
        return and_(Evaluation.speedup.is_(None), Candidate.ordinal > ordinal)
    same = and_(Evaluation.speedup == number_in(speedup), Candidate.ordinal > ordinal)
    return or_(Evaluation.speedup < number_in(speedup), Evaluation.speedup.is_(None), same)
