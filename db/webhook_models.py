"""The tables of webhooks: who wants to be told what and where, and each telling with what became of it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from db.models import EMPTY_OBJECT, NOW, Base, Json, one_of
from db.vocabulary import DeliveryState, DisabledWhy


class Webhook(Base):
    """An address that is told of events of jobs."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"), index=True)
    """Whose it is; None: nobody's, made on loopback without a key."""
    url: Mapped[str]
    types: Mapped[list[str]]
    labels: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    """Only of jobs that have all of these."""
    all_jobs: Mapped[bool] = mapped_column(server_default=text("false"))
    """Of everybody's jobs, not only of those submitted with the same key."""
    description: Mapped[str | None]
    secret: Mapped[str]
    """As it was shown, `whsec_...`: what signs cannot be hashed."""
    previous_secret: Mapped[str | None]
    """From before the last rotation: signs too, until `previous_until`."""
    previous_until: Mapped[datetime | None]
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    disabled_why: Mapped[str | None]
    failures: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Attempts that failed since one succeeded."""
    failing_since: Mapped[datetime | None]
    """When the first of them was."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        one_of("disabled_why", DisabledWhy),
        CheckConstraint("enabled = (disabled_why IS NULL)", name="disabled"),
    )


class WebhookDelivery(Base):
    """One event told to one webhook: the row is its own unit of work, with a fencing token as in the ledger.

    Its id is the `webhook-id` of every attempt. While an attempt is made, `not_before` is the end of its lease, so what
    a killed sender had is due again by itself.
    """

    __tablename__ = "webhook_deliveries"

    id: Mapped[str] = mapped_column(primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    """None: a test."""
    event_seq: Mapped[int | None] = mapped_column(BigInteger)
    type: Mapped[str]
    data: Mapped[Json]
    state: Mapped[str] = mapped_column(server_default=text("'waiting'"))
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Attempts begun."""
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    lease_token: Mapped[UUID | None]
    status: Mapped[int | None] = mapped_column(Integer)
    """What the endpoint answered to the last attempt, as `wall_s`, `answer` and `error` are of the last one."""
    wall_s: Mapped[float | None]
    answer: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    attempted_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        one_of("state", DeliveryState),
        Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
        Index("ix_webhook_deliveries_waiting", "webhook_id", "not_before", postgresql_where=text("state = 'waiting'")),
        Index("ix_webhook_deliveries_finished_at", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    )
