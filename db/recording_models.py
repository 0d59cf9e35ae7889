"""The tables of what a replay needs beside jobs, candidates, calls and evaluations: questions and decisions."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.orm import Mapped, mapped_column

from db.models import NOW, Base, Json


class Ask(Base):
    """A question to outside agents: the prompt of one `ask/tell` candidate, who has it, and what came back.

    The lease itself is the candidate's `propose` work. The token stays here after the work is done, so that the same
    answer told twice is known again.
    """

    __tablename__ = "asks"

    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    request: Mapped[Json] = mapped_column(JSON())
    """What the prompt was made from (`search.recording`). JSON and not JSONB: its numbers stay as they were written."""
    prompt: Mapped[str]
    """The messages, as JSON."""
    prompt_version: Mapped[str]
    edits: Mapped[bool]
    """Whether the prompt asks for edits of the first parent; a whole file will do too."""
    token: Mapped[UUID | None]
    """Of the last lease."""
    agent: Mapped[str | None]
    asked_at: Mapped[datetime | None]
    answer: Mapped[str | None]
    """As it was told; None where a source was told outright."""
    told_hash: Mapped[str | None]
    told_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint("(told_at IS NULL) = (told_hash IS NULL)", name="told"),
        CheckConstraint("told_at IS NULL OR token IS NOT NULL", name="told_by_token"),
    )


class Decision(Base):
    """What an advance saw of its job and what it decided; the tree that it saw are the events up to `seq`."""

    __tablename__ = "decisions"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    seq: Mapped[int] = mapped_column(BigInteger)
    view: Mapped[Json] = mapped_column(JSON())
    """The job at that moment (`search.types.JobView`): budget and models, but also slots, elapsed time and cost."""
    decision: Mapped[Json] = mapped_column(JSON())
    """Expansions and stop reason (`search.types.Decision`); without either, the advance found nothing to do."""
    at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("ix_decisions_job_id_id", "job_id", "id"),)
