"""/v1/webhooks: be told what became of jobs. A key sees its own webhooks, an admin sees all. How: docs/webhooks.md."""

from __future__ import annotations

import asyncio
import socket
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Request, Response
from sqlalchemy.orm import Session

from api import webhook_examples as examples
from api.access import Caller
from api.deps import ActorDep, ServicesDep, StoreDep, known_parameters
from api.errors import (
    BodyTooLarge,
    BrokenJson,
    Invalid,
    NotJson,
    TooManyWebhooks,
    UnknownDelivery,
    UnknownWebhook,
    WebhookOff,
    invalid,
)
from api.openapi import answers, example
from api.paging import Cursor, Limit, link_next
from api.webhook_schemas import (
    Delivery,
    DeliveryDetail,
    DeliveryPage,
    RotateSecretBody,
    Webhook,
    WebhookBody,
    WebhookChange,
    WebhookDeleted,
    WebhookPage,
    WebhookWithSecret,
    delivery,
    delivery_detail,
    webhook,
)
from db import audit, destinations, outbox, webhooks
from db.audit import Actor
from db.destinations import Network, Refused
from db.paging import InvalidCursor
from db.vocabulary import AuditAction, DeliveryState, DisabledWhy, Scope
from db.webhook_models import Webhook as WebhookRow
from db.webhooks import NewWebhook, Owner

RESOLVE_S = 3.0
"""A name that takes longer is looked at when something is sent to it."""

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], dependencies=[Depends(known_parameters)])


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _owner(request: Request) -> Owner:
    caller = _caller(request)
    return Owner(caller.key_id, everybody=Scope.ADMIN in caller.scopes)


CallerDep = Annotated[Caller, Depends(_caller)]
OwnerDep = Annotated[Owner, Depends(_owner)]
WebhookId = Annotated[str, Path(max_length=64)]
DeliveryId = Annotated[str, Path(max_length=64)]

_BODY_ERRORS = (BrokenJson, BodyTooLarge, NotJson, Invalid)
_MADE = {201: example("The webhook, and its secret: shown once", examples.MADE)}
_SHOWN = {200: example("The webhook", examples.WEBHOOK)}
_ROTATED = {200: example("The webhook, and its new secret: shown once", examples.ROTATED)}
_DELETED = {200: example("It is told nothing any more", examples.DELETED)}
_QUEUED = {202: example("It will be sent within seconds", examples.QUEUED)}


@router.get("", summary="List webhooks", responses=answers({200: example("Newest first", examples.WEBHOOK_PAGE)}))
async def list_webhooks(
    request: Request, response: Response, store: StoreDep, owner: OwnerDep, limit: Limit = 50, cursor: Cursor = None
) -> WebhookPage:
    """Those of your key; for an admin, all. Without their secrets, which nobody can read again."""
    page = await store.read(_list, owner, limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


@router.post("", status_code=201, summary="Make a webhook", responses=answers(_MADE, TooManyWebhooks, *_BODY_ERRORS))
async def make_webhook(
    body: WebhookBody,
    response: Response,
    services: ServicesDep,
    store: StoreDep,
    caller: CallerDep,
    actor: ActorDep,
) -> WebhookWithSecret:
    """Each event of the wanted `types` is sent to `url` as a signed POST; keep the secret to verify the signature.

    Without `types` it is told of ended jobs, whether they succeeded, failed or were cancelled. Only https, and only
    addresses of the internet, unless the operator has opened networks of the site.
    """
    _check_jobs(caller, body.jobs)
    await _check_url(body.url, services.settings.webhook_allow)
    made = await store.write(_make, body, actor)
    response.headers["Location"] = made.webhook.links["self"]
    return made


@router.get("/{webhook_id}", summary="Look at a webhook", responses=answers(_SHOWN, UnknownWebhook))
async def show_webhook(webhook_id: WebhookId, store: StoreDep, owner: OwnerDep) -> Webhook:
    """Whether it is enabled, or why not, and whether its endpoint fails at present."""
    return await store.read(_show, webhook_id, owner)


@router.patch("/{webhook_id}", summary="Change a webhook", responses=answers(_SHOWN, UnknownWebhook, *_BODY_ERRORS))
async def change_webhook(
    webhook_id: WebhookId,
    body: WebhookChange,
    services: ServicesDep,
    store: StoreDep,
    owner: OwnerDep,
    caller: CallerDep,
    actor: ActorDep,
) -> Webhook:
    """What it is told from now on, or where. Enabling it forgets how often it failed; what it missed stays missed, and
    can be sent again from its deliveries."""
    _check_jobs(caller, body.jobs)
    if body.url is not None:
        await _check_url(body.url, services.settings.webhook_allow)
    return await store.write(_change, webhook_id, body, owner, actor)


@router.delete("/{webhook_id}", summary="Remove a webhook", responses=answers(_DELETED, UnknownWebhook))
async def delete_webhook(webhook_id: WebhookId, store: StoreDep, owner: OwnerDep, actor: ActorDep) -> WebhookDeleted:
    """With its deliveries, those that wait included. A request that is under way may still arrive."""
    return await store.write(_delete, webhook_id, owner, actor)


@router.post(
    "/{webhook_id}/rotate",
    summary="Give a webhook another secret",
    responses=answers(_ROTATED, UnknownWebhook, *_BODY_ERRORS),
)
async def rotate_secret(
    webhook_id: WebhookId,
    store: StoreDep,
    owner: OwnerDep,
    actor: ActorDep,
    body: Annotated[RotateSecretBody | None, Body()] = None,
) -> WebhookWithSecret:
    """For a day, or for `grace_s`, requests are signed with both, so a receiver may change over when it likes."""
    return await store.write(_rotate, webhook_id, body or RotateSecretBody(), owner, actor)


@router.post(
    "/{webhook_id}/test",
    status_code=202,
    summary="Send a test event",
    responses=answers(_QUEUED, UnknownWebhook, WebhookOff),
)
async def test_webhook(webhook_id: WebhookId, response: Response, store: StoreDep, owner: OwnerDep) -> Delivery:
    """Of the type `webhook.test`, signed and retried like any other. Look at the delivery to see what was answered."""
    made = await store.write(_test, webhook_id, owner)
    response.headers["Location"] = f"/v1/webhooks/{made.webhook_id}/deliveries/{made.id}"
    return made


@router.get(
    "/{webhook_id}/deliveries",
    summary="List the deliveries of a webhook",
    responses=answers({200: example("Newest first", examples.DELIVERY_PAGE)}, UnknownWebhook),
)
async def list_deliveries(
    request: Request,
    response: Response,
    webhook_id: WebhookId,
    store: StoreDep,
    owner: OwnerDep,
    state: DeliveryState | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DeliveryPage:
    """What it was told, what it answered last, and when it is told again. Kept for 30 days after they ended."""
    page = await store.read(_list_deliveries, webhook_id, owner, state, limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


@router.get(
    "/{webhook_id}/deliveries/{delivery_id}",
    summary="Look at a delivery",
    responses=answers({200: example("With its data", examples.DELIVERY_DETAIL)}, UnknownWebhook, UnknownDelivery),
)
async def show_delivery(
    webhook_id: WebhookId, delivery_id: DeliveryId, store: StoreDep, owner: OwnerDep
) -> DeliveryDetail:
    """What is sent under `data`, and what became of it."""
    return await store.read(_show_delivery, webhook_id, delivery_id, owner)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/retry",
    status_code=202,
    summary="Send a delivery again",
    responses=answers(_QUEUED, UnknownWebhook, UnknownDelivery, WebhookOff),
)
async def retry_delivery(webhook_id: WebhookId, delivery_id: DeliveryId, store: StoreDep, owner: OwnerDep) -> Delivery:
    """At once, whatever became of it, with the same `webhook-id` and all its attempts before it. One that is being sent
    at this moment is left alone."""
    return await store.write(_retry, webhook_id, delivery_id, owner)


def _check_jobs(caller: Caller, jobs: str | None) -> None:
    """Raises MissingScope: to be told of everybody's jobs is to read them."""
    if jobs == "all":
        caller.check(Scope.READ)


async def _check_url(url: str, allowed: tuple[Network, ...]) -> None:
    """Raises Invalid for what deliveries would be refused. A name that nobody can resolve just now passes."""
    destination = destinations.read_url(url)
    try:
        async with asyncio.timeout(RESOLVE_S):
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(None, destinations.resolve, destination.host, destination.port)
        destinations.usable(found, destination.scheme, allowed)
    except Refused as error:
        raise invalid("#/url", str(error)) from error
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            raise invalid("#/url", f"names the host {destination.host}, which no name server knows") from error
    except OSError:  # the time was over, or the resolver is away
        return


def _list(session: Session, owner: Owner, limit: int, cursor: str | None) -> WebhookPage:
    try:
        page = webhooks.list_webhooks(session, owner, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    data = [webhook(row) for row in page.items]
    return WebhookPage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)


def _make(session: Session, body: WebhookBody, actor: Actor) -> WebhookWithSecret:
    new = NewWebhook(
        url=body.url,
        types=[each.value for each in body.types],
        labels=body.labels,
        all_jobs=body.jobs == "all",
        description=body.description,
    )
    try:
        row = webhooks.create_webhook(session, new, actor.key_id)
    except webhooks.TooMany as error:
        raise TooManyWebhooks from error
    if not body.enabled:
        outbox.disable(row, DisabledWhy.OWNER)
    audit.note(session, actor, AuditAction.WEBHOOK_CREATE, row.id, body.model_dump(mode="json", exclude={"url"}))
    return WebhookWithSecret(webhook=webhook(row), secret=row.secret)


def _show(session: Session, webhook_id: str, owner: Owner) -> Webhook:
    return webhook(_found(session, webhook_id, owner))


def _change(session: Session, webhook_id: str, body: WebhookChange, owner: Owner, actor: Actor) -> Webhook:
    row = _found(session, webhook_id, owner, lock=True)
    for name in ("url", "labels", "types"):
        if (value := getattr(body, name)) is not None:
            setattr(row, name, value)
    if body.jobs is not None:
        row.all_jobs = body.jobs == "all"
    if body.description is not None:
        row.description = body.description or None
    if body.enabled and not row.enabled:
        outbox.enable(row)
    elif body.enabled is False and row.enabled:
        outbox.disable(row, DisabledWhy.OWNER)
    changes = body.model_dump(mode="json", exclude_none=True)
    if "url" in changes:
        changes["url"] = "changed"  # it may hold a token of its owner's
    audit.note(session, actor, AuditAction.WEBHOOK_CHANGE, row.id, changes)
    return webhook(row)


def _delete(session: Session, webhook_id: str, owner: Owner, actor: Actor) -> WebhookDeleted:
    row = _found(session, webhook_id, owner, lock=True)
    was = webhook(row)
    webhooks.delete_webhook(session, row)
    audit.note(session, actor, AuditAction.WEBHOOK_DELETE, webhook_id)
    return WebhookDeleted(deleted=True, webhook=was)


def _rotate(session: Session, webhook_id: str, body: RotateSecretBody, owner: Owner, actor: Actor) -> WebhookWithSecret:
    row = _found(session, webhook_id, owner, lock=True)
    webhooks.rotate_webhook(session, row, body.grace_s)
    audit.note(session, actor, AuditAction.WEBHOOK_ROTATE, row.id, body.model_dump(mode="json"))
    return WebhookWithSecret(webhook=webhook(row), secret=row.secret)


def _test(session: Session, webhook_id: str, owner: Owner) -> Delivery:
    row = _enabled(session, webhook_id, owner)
    return delivery(outbox.tell_test(session, row))


def _list_deliveries(
    session: Session, webhook_id: str, owner: Owner, state: DeliveryState | None, limit: int, cursor: str | None
) -> DeliveryPage:
    row = _found(session, webhook_id, owner)
    wanted = None if state is None else state.value
    try:
        page = webhooks.list_deliveries(session, row.id, state=wanted, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    data = [delivery(each) for each in page.items]
    return DeliveryPage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)


def _show_delivery(session: Session, webhook_id: str, delivery_id: str, owner: Owner) -> DeliveryDetail:
    row = webhooks.get_delivery(session, _found(session, webhook_id, owner).id, delivery_id)
    if row is None:
        raise UnknownDelivery
    return delivery_detail(row)


def _retry(session: Session, webhook_id: str, delivery_id: str, owner: Owner) -> Delivery:
    row = webhooks.get_delivery(session, _enabled(session, webhook_id, owner).id, delivery_id, lock=True)
    if row is None:
        raise UnknownDelivery
    outbox.tell_again(session, row)
    return delivery(row)


def _found(session: Session, webhook_id: str, owner: Owner, *, lock: bool = False) -> WebhookRow:
    row = webhooks.get_webhook(session, webhook_id, owner, lock=lock)
    if row is None:
        raise UnknownWebhook
    return row


def _enabled(session: Session, webhook_id: str, owner: Owner) -> WebhookRow:
    """Locked, so that it is not removed before its delivery is written."""
    row = _found(session, webhook_id, owner, lock=True)
    if not row.enabled:
        raise WebhookOff
    return row
