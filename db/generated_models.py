"""The tables of generated code: texts, each stored once whoever has it, and which candidate has which."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Integer, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from db.models import NOW, Base, one_of
from db.vocabulary import CodeKind


class CodeText(Base):
    """A text of generated code, compressed by zlib: candidates that differ in nothing that reaches the compiler share
    it."""

    __tablename__ = "code_texts"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    """Of the text in UTF-8."""
    size: Mapped[int] = mapped_column(Integer)
    """In bytes, before compression."""
    compressed: Mapped[bytes] = mapped_column(LargeBinary)
    used_at: Mapped[datetime] = mapped_column(server_default=NOW)
    """When it was last stored for a candidate: one that nobody has may be deleted a day later (docs/operations.md)."""


class CandidateCode(Base):
    """One kind of a candidate's generated code."""

    __tablename__ = "candidate_code"

    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(ForeignKey("code_texts.sha256"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=NOW, index=True)

    __table_args__ = (one_of("kind", CodeKind),)
