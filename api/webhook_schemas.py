"""Webhooks and their deliveries on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from api.job_schemas import Labels
from api.schemas import Body, Resource, Text, UtcTime
from db.destinations import MAX_URL, Refused, read_url
from db.vocabulary import DeliveryState, DisabledWhy, WebhookType
from db.webhook_models import Webhook as WebhookRow
from db.webhook_models import WebhookDelivery as DeliveryRow

_DAY_S = 86_400
DEFAULT_TYPES = [WebhookType.JOB_FINISHED]


def _sendable(url: str) -> str:
    try:
        read_url(url)
    except Refused as error:
        raise PydanticCustomError("url", "{why}", {"why": str(error)}) from error
    return url


def _each_once(types: list[WebhookType]) -> list[WebhookType]:
    return list(dict.fromkeys(types))


Url = Annotated[
    str,
    Field(max_length=MAX_URL, pattern=r"^https?://", examples=["https://example.com/hooks/kernelwright"]),
    AfterValidator(_sendable),
]
Types = Annotated[list[WebhookType], Field(min_length=1, max_length=20), AfterValidator(_each_once)]
Whose = Annotated[
    Literal["own", "all"],
    Field(description="of which jobs: those submitted with the same key, or everybody's (needs the scope `read`)"),
]
Description = Annotated[Text, Field(max_length=200)]
Switch = Annotated[bool, Field(strict=True)]

EXAMPLE_BODY: dict[str, Any] = {
    "url": "https://example.com/hooks/kernelwright",
    "types": ["job.improved", "job.finished"],
    "labels": {"team": "ranking"},
    "description": "posts to the team's channel",
}


class WebhookBody(Body):
    """A webhook to be made. `labels`: only of jobs that have all of them."""

    model_config = {"json_schema_extra": {"examples": [EXAMPLE_BODY]}}

    url: Url
    types: Types = DEFAULT_TYPES
    jobs: Whose = "own"
    labels: Labels = {}
    description: Description | None = None
    enabled: Switch = True


class WebhookChange(Body):
    """What is to change. What is left out or null stays; an empty description removes it."""

    url: Url | None = None
    types: Types | None = None
    jobs: Whose | None = None
    labels: Labels | None = None
    description: Description | None = None
    enabled: Switch | None = None


class RotateSecretBody(Body):
    """How the old secret ends."""

    grace_s: Annotated[
        float,
        Field(
            ge=0,
            le=30 * _DAY_S,
            allow_inf_nan=False,
            strict=True,  # else false is no grace
            description="how long the old secret signs beside the new",
        ),
    ] = _DAY_S


class Webhook(Resource):
    """A webhook without its secret.

    `disabled_why` is `owner`, `gone` (it answered 410) or `failing` (for days). `failures` are the attempts that failed
    since one succeeded, the first of them at `failing_since`. `previous_until` is when the old secret ends.
    """

    id: str
    url: str
    types: list[WebhookType]
    jobs: Literal["own", "all"]
    labels: dict[str, str]
    description: str | None
    enabled: bool
    disabled_why: DisabledWhy | None
    failures: int
    failing_since: UtcTime | None
    previous_until: UtcTime | None
    key_id: str | None
    created_at: UtcTime
    links: dict[str, str]


class WebhookPage(Resource):
    data: list[Webhook]
    next_cursor: str | None
    has_more: bool


class WebhookWithSecret(Resource):
    """The secret is shown here and never again."""

    webhook: Webhook
    secret: str


class WebhookDeleted(Resource):
    """The webhook as it was."""

    deleted: Literal[True]
    webhook: Webhook


class Delivery(Resource):
    """One event for one webhook; its id is the `webhook-id` of every attempt.

    `attempts` are those begun; `status`, `wall_s`, `answer` (its beginning) and `error` are of the last one.
    `next_attempt_at` is null when there will be none.
    """

    id: str
    webhook_id: str
    job_id: str | None
    type: str
    state: DeliveryState
    attempts: int
    status: int | None
    wall_s: float | None
    answer: str | None
    error: str | None
    created_at: UtcTime
    attempted_at: UtcTime | None
    next_attempt_at: UtcTime | None
    finished_at: UtcTime | None


class DeliveryDetail(Delivery):
    """With what is sent under `data`."""

    data: dict[str, Any]


class DeliveryPage(Resource):
    data: list[Delivery]
    next_cursor: str | None
    has_more: bool


def webhook(row: WebhookRow) -> Webhook:
    """The resource of a webhook."""
    own = f"/v1/webhooks/{row.id}"
    return Webhook(
        id=row.id,
        url=row.url,
        types=[WebhookType(each) for each in row.types],
        jobs="all" if row.all_jobs else "own",
        labels=row.labels,
        description=row.description,
        enabled=row.enabled,
        disabled_why=DisabledWhy(row.disabled_why) if row.disabled_why else None,
        failures=row.failures,
        failing_since=row.failing_since,
        previous_until=row.previous_until,
        key_id=row.key_id,
        created_at=row.created_at,
        links={"self": own} | {part: f"{own}/{part}" for part in ("deliveries", "test", "rotate")},
    )


def delivery(row: DeliveryRow) -> Delivery:
    """The resource of a delivery, for a list."""
    return Delivery(**_fields(row))


def delivery_detail(row: DeliveryRow) -> DeliveryDetail:
    """The resource of a delivery with its data."""
    return DeliveryDetail(**_fields(row), data=row.data)


def _fields(row: DeliveryRow) -> dict[str, Any]:
    state = DeliveryState(row.state)
    return {
        "id": row.id,
        "webhook_id": row.webhook_id,
        "job_id": row.job_id,
        "type": row.type,
        "state": state,
        "attempts": row.attempt,
        "status": row.status,
        "wall_s": row.wall_s,
        "answer": row.answer,
        "error": row.error,
        "created_at": row.created_at,
        "attempted_at": row.attempted_at,
        "next_attempt_at": row.not_before if state is DeliveryState.WAITING else None,
        "finished_at": row.finished_at,
    }
