"""Lessons for people: pages, newest first, and one lesson with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.knowledge_models import Lesson, LessonEvidence
from db.paging import Page, decode_cursor, encode_cursor


@dataclass(frozen=True, slots=True)
class LessonFilter:
    """Which lessons to list; None means any. `hardware_kin` is a family: `hopper`, `x86`."""

    state: str | None = None
    kind: str | None = None
    language: str | None = None
    hardware_kin: str | None = None
    op_family: str | None = None


def list_lessons(
    session: Session, where: LessonFilter | None = None, *, limit: int = 50, cursor: str | None = None
) -> Page[Lesson]:
    """Lessons, newest first. Raises InvalidCursor."""
    where = where or LessonFilter()
    wanted = {
        Lesson.state: where.state,
        Lesson.kind: where.kind,
        Lesson.language: where.language,
        Lesson.hardware_kin: where.hardware_kin,
        Lesson.op_family: where.op_family,
    }
    query = select(Lesson).order_by(Lesson.id.desc()).limit(limit + 1)
    for column, value in wanted.items():
        if value is not None:
            query = query.where(column == value)
    if cursor is not None:
        query = query.where(Lesson.id < str(decode_cursor(cursor, 1)[0]))
    rows = session.scalars(query).all()
    following = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return Page(tuple(rows[:limit]), following)


def get_lesson(session: Session, lesson_id: str) -> tuple[Lesson, Sequence[LessonEvidence]] | None:
    """A lesson and all evidence on it, oldest first."""
    lesson = session.get(Lesson, lesson_id)
    if lesson is None:
        return None
    query = (
        select(LessonEvidence)
        .where(LessonEvidence.lesson_id == lesson_id)
        .order_by(LessonEvidence.created_at, LessonEvidence.candidate_id)
    )
    return lesson, session.scalars(query).all()
