"""The tables of the knowledge base, beside `kernels`: lessons with their evidence, and what was shown to whom."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Numeric, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from db.models import EMPTY_ARRAY, EMPTY_OBJECT, NOW, Base, Json, one_of
from db.vocabulary import ItemKind, Language, LessonKind, LessonState, Says


class Lesson(Base):
    """A rule learned. What it says follows from its evidence, and is written anew with each new piece of it."""

    __tablename__ = "lessons"

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    language: Mapped[str]
    hardware_kin: Mapped[str]
    op_family: Mapped[str] = mapped_column(server_default=sql("''"))
    """Empty: any."""
    bound: Mapped[str] = mapped_column(server_default=sql("''"))
    """Empty: not known."""
    key: Mapped[str]
    """What makes it the same lesson in another job: a change's name, or the digest of an error."""
    statement: Mapped[str]
    """The lesson without its figures."""
    state: Mapped[str] = mapped_column(server_default=sql("'tentative'"))
    title: Mapped[str] = mapped_column(server_default=sql("''"))
    text: Mapped[str] = mapped_column(server_default=sql("''"))
    terms: Mapped[str] = mapped_column(server_default=sql("''"))
    terms_vector: Mapped[str] = mapped_column(TSVECTOR(), server_default=sql("''"))
    embedder: Mapped[str | None]
    embedding: Mapped[bytes | None]
    evidence: Mapped[int] = mapped_column(Integer, server_default=sql("0"))
    """How many candidates had a word on it."""
    supporting: Mapped[int] = mapped_column(Integer, server_default=sql("0"))
    """How many independent jobs say so."""
    opposing: Mapped[int] = mapped_column(Integer, server_default=sql("0"))
    effect_log: Mapped[float | None]
    """In log-speedup, pooled over jobs."""
    effect_low: Mapped[float | None]
    effect_high: Mapped[float | None]
    notes: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    last_confirmed: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        one_of("kind", LessonKind),
        one_of("state", LessonState),
        one_of("language", Language),
        UniqueConstraint("kind", "language", "hardware_kin", "op_family", "bound", "key"),
        Index(
            "ix_lessons_target",
            "language",
            "hardware_kin",
            "op_family",
            sql("supporting DESC"),
            postgresql_where=sql("state = 'confirmed'"),
        ),
        Index(
            "ix_lessons_title",
            "title",
            postgresql_using="gin",
            postgresql_ops={"title": "gin_trgm_ops"},
        ),
    )


class LessonEvidence(Base):
    """One candidate's word on a lesson. A candidate has one word on each."""

    __tablename__ = "lesson_evidence"

    lesson_id: Mapped[str] = mapped_column(ForeignKey("lessons.id"), primary_key=True)
    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), primary_key=True, index=True)
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("candidates.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    origin: Mapped[str]
    """The job, or the first in the chain of reruns that it belongs to: what counts as independent."""
    says: Mapped[str]
    effect_log: Mapped[float | None]
    effect_low: Mapped[float | None]
    effect_high: Mapped[float | None]
    note: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (one_of("says", Says),)


class KnowledgeUse(Base):
    """An item that came up for a candidate's proposal, as it was then: shown, or withheld to be measured against."""

    __tablename__ = "knowledge_uses"

    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), primary_key=True)
    item_id: Mapped[str] = mapped_column(primary_key=True)
    """Of a kernel or a lesson; a fact's is `fact:` and its name."""
    kind: Mapped[str]
    place: Mapped[int] = mapped_column(Integer)
    """Its place in the proposal, from 1: the order in which prompts take items."""
    rank: Mapped[int] = mapped_column(Integer)
    """Its rank among its kind."""
    score: Mapped[float]
    parts: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    """The rank in each part of the retrieval that ranked it."""
    shown: Mapped[bool]
    title: Mapped[str]
    text: Mapped[str]

    __table_args__ = (
        one_of("kind", ItemKind),
        CheckConstraint("place > 0 AND rank > 0", name="ranks"),
        Index("ix_knowledge_uses_item_id", "item_id"),
    )


class KnowledgeRetirement(Base):
    """An item that is shown to nobody any more, with the reason and the lift that was measured."""

    __tablename__ = "knowledge_retirements"

    item_id: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str]
    lift: Mapped[dict[str, Any]] = mapped_column(server_default=EMPTY_OBJECT)
    retired_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Meaning(Base):
    """The vector of an item's text by an embedding model. Without a vector it is a claim on having one made."""

    __tablename__ = "meanings"

    item_id: Mapped[str] = mapped_column(primary_key=True)
    """Of a kernel or a lesson; a problem's is `problem:` and its hash."""
    embedder: Mapped[str] = mapped_column(primary_key=True)
    """The model in litellm's spelling. Vectors are compared within one embedder only."""
    vector: Mapped[bytes | None]
    text_hash: Mapped[str | None]
    """SHA-256 of the text that the vector is of."""
    usd: Mapped[Decimal | None] = mapped_column(Numeric())
    """The row's share of what its calls cost, not rounded: a text costs some millionths. None: unknown."""
    claimed_until: Mapped[datetime | None]
    """Until then somebody has it made; after a failure, nobody tries before."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        CheckConstraint("(vector IS NULL) = (text_hash IS NULL)", name="embedded"),
        Index("ix_meanings_embedded", "embedder", "item_id", postgresql_where=sql("vector IS NOT NULL")),
        Index("ix_meanings_claimed", "embedder", "item_id", postgresql_where=sql("claimed_until IS NOT NULL")),
        Index(
            "ix_meanings_created_at",
            "created_at",
            postgresql_include=["usd"],
            postgresql_where=sql("usd IS NOT NULL"),
        ),
    )


class KnowledgeTerm(Base):
    """A word and how many kernels have it: rare words narrow, and weigh more."""

    __tablename__ = "knowledge_terms"

    term: Mapped[str] = mapped_column(primary_key=True)
    holders: Mapped[int] = mapped_column(Integer)
