"""Webhooks: made, looked at, changed, given another secret, removed. What they are told is in `db.outbox`."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from sqlalchemy import ColumnElement, delete, func, select, true, update
from sqlalchemy.orm import Session

from db.ids import new_id
from db.paging import InvalidCursor, Page, decode_cursor, encode_cursor
from db.webhook_models import Webhook, WebhookDelivery

SECRET_PREFIX: Final = "whsec_"
"""Begins every secret, so that scanners for leaked secrets, and verifying libraries, can know one."""
MOST_PER_KEY: Final = 50
"""Each event of a job is a row for each webhook that wants it."""


Row = TypeVar("Row", Webhook, WebhookDelivery)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose webhooks: those of a key (None: of nobody, on loopback), or for an admin all of them."""

    key_id: str | None
    everybody: bool = False

    def sees(self) -> ColumnElement[bool]:
        """The condition on a webhook."""
        return true() if self.everybody else Webhook.key_id.is_not_distinct_from(self.key_id)


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A validated request. `all_jobs`: of everybody's jobs; `labels`: only of jobs that have all of them."""

    url: str
    types: Sequence[str]
    labels: Mapping[str, str]
    all_jobs: bool = False
    description: str | None = None


class TooMany(Exception):
    """The key has as many webhooks as it may have."""


def new_secret() -> str:
    """A secret with 256 random bits, in the spelling of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def create_webhook(session: Session, new: NewWebhook, key_id: str | None) -> Webhook:
    """Store a webhook with a new secret. Raises TooMany."""
    held = select(func.count()).where(Webhook.key_id.is_not_distinct_from(key_id))
    if session.execute(held).scalar_one() >= MOST_PER_KEY:
        raise TooMany
    row = Webhook(
        id=new_id("webhook"),
        key_id=key_id,
        url=new.url,
        types=list(new.types),
        labels=dict(new.labels),
        all_jobs=new.all_jobs,
        description=new.description,
        secret=new_secret(),
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def get_webhook(session: Session, webhook_id: str, owner: Owner, *, lock: bool = False) -> Webhook | None:
    """The webhook, if it is one of the owner's."""
    query = select(Webhook).where(Webhook.id == webhook_id, owner.sees()).execution_options(populate_existing=True)
    return session.scalar(query.with_for_update(key_share=True) if lock else query)


def list_webhooks(session: Session, owner: Owner, *, limit: int = 50, cursor: str | None = None) -> Page[Webhook]:
    """The owner's webhooks, newest first. Raises InvalidCursor."""
    query = select(Webhook).where(owner.sees()).order_by(Webhook.id.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(Webhook.id < _id_in(cursor))
    return _page(session.scalars(query).all(), limit)


def rotate_webhook(session: Session, webhook: Webhook, grace_s: float) -> None:
    """Give the webhook another secret; for `grace_s` both sign. Of two rotations within it the last two secrets do."""
    webhook.previous_secret = webhook.secret if grace_s > 0 else None
    webhook.secret = new_secret()
    session.flush()
    until = func.now() + timedelta(seconds=grace_s) if grace_s > 0 else None
    session.execute(update(Webhook).where(Webhook.id == webhook.id).values(previous_until=until))
    session.refresh(webhook)


def delete_webhook(session: Session, webhook: Webhook) -> None:
    """Remove the webhook and its deliveries."""
    session.execute(delete(Webhook).where(Webhook.id == webhook.id))


def list_deliveries(
    session: Session, webhook_id: str, *, state: str | None = None, limit: int = 50, cursor: str | None = None
) -> Page[WebhookDelivery]:
    """A webhook's deliveries, newest first. Raises InvalidCursor."""
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id)
    if state is not None:
        query = query.where(WebhookDelivery.state == state)
    if cursor is not None:
        query = query.where(WebhookDelivery.id < _id_in(cursor))
    return _page(session.scalars(query.order_by(WebhookDelivery.id.desc()).limit(limit + 1)).all(), limit)


def get_delivery(session: Session, webhook_id: str, delivery_id: str, *, lock: bool = False) -> WebhookDelivery | None:
    """One delivery of a webhook."""
    query = select(WebhookDelivery).where(WebhookDelivery.id == delivery_id, WebhookDelivery.webhook_id == webhook_id)
    query = query.execution_options(populate_existing=True)
    return session.scalar(query.with_for_update() if lock else query)


def _page(rows: Sequence[Row], limit: int) -> Page[Row]:
    """Of rows that were asked for with one more than the limit."""
    return Page(tuple(rows[:limit]), encode_cursor(rows[limit - 1].id) if len(rows) > limit else None)


def _id_in(cursor: str) -> str:
    (last,) = decode_cursor(cursor, 1)
    if not isinstance(last, str) or "\0" in last:
        raise InvalidCursor
    return last
