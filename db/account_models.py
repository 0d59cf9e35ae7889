"""Tables of who asks and for what: API keys with their caps, requests in plain words, and the audit log."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Final
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from db.models import EMPTY_OBJECT, NOW, Base, Json, one_of
from db.vocabulary import AuditAction, RequestState, Scope

_SCOPES: Final = ", ".join(f"'{scope.value}'" for scope in Scope)


class ApiKey(Base):
    """A key by the hash of its token: what it may do, how long, and what its jobs may use together. NULL is no cap."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    token_hash: Mapped[str] = mapped_column(unique=True)
    """SHA-256 of the token in hex: the token itself is shown once and kept nowhere."""
    prefix: Mapped[str | None]
    """How the token begins, to know it again by; None for tokens from before this was kept."""
    previous_hash: Mapped[str | None] = mapped_column(unique=True)
    """Of the token before the last rotation, good until `previous_until`."""
    previous_until: Mapped[datetime | None]
    scopes: Mapped[list[str]] = mapped_column(server_default=text("'{submit,read}'::text[]"))
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """To the minute."""
    budget_usd: Mapped[Decimal | None]
    budget_tokens: Mapped[int | None] = mapped_column(BigInteger)
    budget_calls: Mapped[int | None] = mapped_column(Integer)
    budget_gpu_s: Mapped[float | None]
    budget_wall_s: Mapped[float | None]
    budget_candidates: Mapped[int | None] = mapped_column(Integer)
    budget_jobs: Mapped[int | None] = mapped_column(Integer)
    """Jobs that have not ended."""
    budget_jobs_per_day: Mapped[int | None] = mapped_column(Integer)
    """Jobs submitted within 24 hours."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        CheckConstraint(f"scopes <@ ARRAY[{_SCOPES}]::text[] AND cardinality(scopes) > 0", name="scopes"),
    )


class PlainRequest(Base):
    """A request in plain words: what was asked, what is proposed, the paid call that wrote it, the job it became.

    The row is its own unit of work, with a lease and a fencing token as in the ledger: a model may be writing for it.
    """

    __tablename__ = "requests"

    id: Mapped[str] = mapped_column(primary_key=True)
    words: Mapped[str]
    state: Mapped[str]
    proposal: Mapped[Json | None]
    """What the user is shown; its `job` is a complete body for POST /v1/jobs."""
    rest: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    """The fields of the job that the request set beside its words: budget, models, labels, ..."""
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"), index=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    error: Mapped[str | None]
    model: Mapped[str | None]
    prompt: Mapped[str | None]
    answer: Mapped[str | None]
    calls: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Calls that were started."""
    tokens_in: Mapped[int | None] = mapped_column(BigInteger)
    tokens_out: Mapped[int | None] = mapped_column(BigInteger)
    cost_usd: Mapped[Decimal | None]
    """NULL when no call was made or its price is unknown."""
    cost_source: Mapped[str | None]
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    lease_token: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    rung_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        one_of("state", RequestState),
        Index("ix_requests_waiting", "id", postgresql_where=text("state IN ('queued', 'writing')")),
        Index(
            "ix_requests_finished_at",
            "finished_at",
            postgresql_include=["cost_usd"],
            postgresql_where=text("finished_at IS NOT NULL"),
        ),
    )


class AuditEntry(Base):
    """One thing that somebody did: rows are only ever added."""

    __tablename__ = "audit"

    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=NOW)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    """None: on loopback without a key, or on the command line."""
    action: Mapped[str]
    subject: Mapped[str]
    address: Mapped[str | None]
    request_id: Mapped[str | None]
    data: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)

    __table_args__ = (
        one_of("action", AuditAction),
        Index("ix_audit_key_id_seq", "key_id", "seq"),
        Index("ix_audit_subject_seq", "subject", "seq"),
    )
