"""The outbox of webhooks: what is to be told is written with the event, in its transaction, and sent afterwards.

So nothing is told that did not happen, and nothing that happened goes untold, whoever is killed when. A delivery is
claimed with a lease and settled by comparing its token. A sender that was killed between sending and settling has its
delivery sent again when the lease ends: at least once, and always with the same id.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from db import audit
from db.audit import Actor
from db.ids import new_id
from db.models import Job
from db.statements import load_statements
from db.storable import storable_text
from db.vocabulary import AuditAction, DeliveryState, DisabledWhy, EventType, WebhookType
from db.webhook_models import Webhook, WebhookDelivery

SQL: Final = load_statements(Path(__file__).with_name("outbox.sql"))

TEST_TYPE: Final = "webhook.test"
DELAYS_S: Final = (5.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0)
"""From a failed attempt to the next: eight attempts within a day and a half."""
MAX_ATTEMPTS: Final = len(DELAYS_S) + 1
JITTER: Final = 0.2
LEASE_S: Final = 90.0
"""Three times what an attempt may take (`worker.posting`). Not renewed: a sender that takes longer is gone."""
PER_WEBHOOK: Final = 2
"""Deliveries that one endpoint gets at the same time."""
GONE: Final = 410
HOPELESS_AFTER: Final = timedelta(days=3)
HOPELESS_ATTEMPTS: Final = 10
"""A webhook is disabled when so many attempts over so long failed, and none between succeeded."""
KEPT_DAYS: Final = 30
ANSWER_CHARS: Final = 500
PRUNE_BATCH: Final = 1_000

_TOLD: Final = frozenset(word.value for word in WebhookType)
_LINKS: Final = ("events", "candidates", "best", "certificate")


@dataclass(frozen=True, slots=True)
class Sending:
    """A claimed delivery: only who holds the token may settle it."""

    id: str
    webhook_id: str
    token: UUID
    attempt: int
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """All that sign it, the current one first."""
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one attempt: an answer with its status, or the error that kept it from being one."""

    wall_s: float
    status: int | None = None
    answer: str | None = None
    error: str | None = None
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the endpoint took it."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is to be sent, how long the oldest has been due, and how many webhooks there are."""

    waiting: int = 0
    oldest_age_s: float = 0.0
    enabled: int = 0
    disabled: int = 0


class SendingLost(Exception):
    """Somebody else sends this delivery now, or its webhook was deleted: what was found is dropped."""


def tell(session: Session, job_id: str, seq: int, type: EventType) -> None:
    """Write down whom an event is to be told to. Without webhooks: one statement, and only for events of whole jobs."""
    if type.value not in _TOLD:
        return
    ids = session.scalars(SQL["wanted"], {"job_id": job_id, "type": type.value}).all()
    if ids:
        told = {"job_id": job_id, "event_seq": seq, "type": type.value, "data": _outline(session, job_id, seq)}
        session.execute(insert(WebhookDelivery), [told | {"id": new_id("delivery"), "webhook_id": id} for id in ids])


def tell_test(session: Session, webhook: Webhook) -> WebhookDelivery:
    """Have a webhook be told that it is being tested."""
    row = WebhookDelivery(
        id=new_id("delivery"),
        webhook_id=webhook.id,
        type=TEST_TYPE,
        data={"webhook": {"id": webhook.id, "description": webhook.description}},
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def tell_again(session: Session, row: WebhookDelivery) -> None:
    """Have a delivery be sent at once, with all its attempts before it. While it is being sent it is left alone."""
    now = _now(session)
    if row.state == DeliveryState.WAITING and row.lease_token is not None and row.not_before > now:
        return
    row.state, row.attempt, row.not_before = DeliveryState.WAITING.value, 0, now
    row.lease_token = row.finished_at = None
    session.flush()


def give_up(session: Session) -> int:
    """End what is due and will not be sent; how many that were."""
    return len(session.execute(SQL["give_up"], {"most_attempts": MAX_ATTEMPTS}).all())


def claim(session: Session, most: int, *, lease_s: float = LEASE_S) -> list[Sending]:
    """Take up to `most` deliveries that are due, and have them to oneself for `lease_s`."""
    parameters = {"most": most, "per_webhook": PER_WEBHOOK, "most_attempts": MAX_ATTEMPTS, "lease_s": lease_s}
    return [
        Sending(
            id=row.id,
            webhook_id=row.webhook_id,
            token=row.lease_token,
            attempt=row.attempt,
            url=row.url,
            secrets=tuple(filter(None, (row.secret, row.previous_secret))),
            body={"type": row.type, "timestamp": _text(row.created_at), "data": row.data},
        )
        for row in session.execute(SQL["claim"], parameters)
    ]


def settle(session: Session, sending: Sending, attempt: Attempt, dice: random.Random) -> DeliveryState:
    """Write down what became of an attempt: `waiting` for the next one, or the end. Raises SendingLost.

    A webhook that answers 410, or has failed for days, is disabled here.
    """
    # The webhook before its delivery, in the order in which deleting a webhook locks them.
    lock = {"key_share": True}
    webhook = session.get(Webhook, sending.webhook_id, populate_existing=True, with_for_update=lock)
    if webhook is None:
        raise SendingLost
    state = _state(sending, attempt)
    parameters = {
        "id": sending.id,
        "token": sending.token,
        "state": state.value,
        "status": attempt.status,
        "wall_s": attempt.wall_s,
        "answer": _stored(attempt.answer),
        "error": _stored(attempt.error),
        "delay_s": _delay_s(sending.attempt, attempt.retry_after_s, dice) if state is DeliveryState.WAITING else 0.0,
    }
    if session.execute(SQL["settle"], parameters).one_or_none() is None:
        raise SendingLost
    _note(session, webhook, attempt)
    return state


def disable(webhook: Webhook, why: DisabledWhy) -> None:
    """Tell a webhook nothing more. What waits for it is given up when it is due."""
    webhook.enabled, webhook.disabled_why = False, why.value


def enable(webhook: Webhook) -> None:
    """Tell a webhook again, of what happens from now on."""
    webhook.enabled, webhook.disabled_why, webhook.failures, webhook.failing_since = True, None, 0, None


def prune(session: Session, *, days: int = KEPT_DAYS, batch: int = PRUNE_BATCH) -> int:
    """Drop a batch of the deliveries that ended so long ago; how many that were."""
    return len(session.execute(SQL["prune"], {"days": days, "batch": batch}).all())


def depth(session: Session) -> Depth:
    """What the gauges show of the outbox."""
    row = session.execute(SQL["gauges"]).one()
    return Depth(row.waiting, max(0.0, float(row.oldest_age_s)), row.enabled, row.disabled)


def _outline(session: Session, job_id: str, seq: int) -> dict[str, Any]:
    """The job in a few words and where to read on. No source, no error text: both may hold what is not for others."""
    columns = (
        Job.id,
        Job.state,
        Job.stop_reason,
        Job.problem_name,
        Job.problem_hash,
        Job.hardware,
        Job.language,
        Job.labels,
        Job.best_candidate_id,
        Job.best_speedup,
        Job.version,
        Job.created_at,
        Job.finished_at,
    )
    job = session.execute(select(*columns).where(Job.id == job_id)).one()
    best = {"candidate_id": job.best_candidate_id, "speedup": job.best_speedup}
    own = f"/v1/jobs/{job_id}"
    outline = {
        "id": job.id,
        "state": job.state,
        "stop_reason": job.stop_reason,
        "problem": {"name": job.problem_name, "hash": job.problem_hash},
        "target": {"hardware": job.hardware, "language": job.language},
        "labels": job.labels,
        "best": best if job.best_candidate_id is not None else None,
        "version": job.version,
        "created_at": _text(job.created_at),
        "finished_at": _text(job.finished_at) if job.finished_at is not None else None,
        "links": {"self": own} | {part: f"{own}/{part}" for part in _LINKS},
    }
    return {"seq": seq, "job": outline}


def _state(sending: Sending, attempt: Attempt) -> DeliveryState:
    if attempt.ok:
        return DeliveryState.SUCCEEDED
    if attempt.status == GONE or sending.attempt >= MAX_ATTEMPTS:
        return DeliveryState.FAILED
    return DeliveryState.WAITING


def _delay_s(attempt: int, retry_after_s: float | None, dice: random.Random) -> float:
    """When many failed together, they do not come back together. What the endpoint asks for is kept, up to a day."""
    planned = DELAYS_S[min(attempt, len(DELAYS_S)) - 1] * dice.uniform(1 - JITTER, 1 + JITTER)
    return max(planned, min(retry_after_s or 0.0, DELAYS_S[-1]))


def _note(session: Session, webhook: Webhook, attempt: Attempt) -> None:
    """What an attempt says of the webhook as a whole."""
    if attempt.ok:
        webhook.failures, webhook.failing_since = 0, None
        return
    now = _now(session)
    webhook.failures += 1
    webhook.failing_since = webhook.failing_since or now
    if not webhook.enabled:
        return
    if attempt.status == GONE:
        why = DisabledWhy.GONE
    elif webhook.failures >= HOPELESS_ATTEMPTS and now - webhook.failing_since >= HOPELESS_AFTER:
        why = DisabledWhy.FAILING
    else:
        return
    disable(webhook, why)
    told = {"why": why.value, "failures": webhook.failures, "failing_since": _text(webhook.failing_since)}
    audit.note(session, Actor(), AuditAction.WEBHOOK_DISABLE, webhook.id, told)


def _stored(text: str | None) -> str | None:
    return None if text is None else storable_text(text)[:ANSWER_CHARS]


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _now(session: Session) -> datetime:
    return session.execute(select(func.now())).scalar_one()
