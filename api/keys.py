"""/v1/keys: API keys, for admins: list, make, rotate and revoke them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Depends, Path
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api import key_examples as examples
from api.deps import ActorDep, ServicesDep, StoreDep, known_parameters
from api.errors import BodyTooLarge, BrokenJson, Invalid, KeyExists, KeyOver, NoSuchKey, NotJson
from api.key_schemas import Caps, Key, KeyBody, KeyList, KeyRevoked, KeyWithToken, RotateBody, given
from api.openapi import answers, example
from db import audit, keys
from db.account_models import ApiKey
from db.audit import Actor
from db.budgets import CAPS, QUOTAS, jobs_in_flight, jobs_of_today, key_spent
from db.vocabulary import AuditAction, Scope

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[Depends(known_parameters)])

Name = Annotated[str, Path(max_length=64)]

_BODY_ERRORS = (BrokenJson, BodyTooLarge, NotJson, Invalid)
_MADE = {201: example("The key, and its token: shown once", examples.MADE)}
_ROTATED = {200: example("The key, and its new token: shown once", examples.ROTATED)}
_REVOKED = {200: example("It opens nothing any more", examples.REVOKED)}


@router.get("", summary="List the keys", responses=answers({200: example("Oldest first", examples.KEY_LIST)}))
async def list_api_keys(store: StoreDep) -> KeyList:
    """With their caps and what is used of them, and without their tokens, which nobody can read again."""
    return await store.read(_list)


@router.post("", status_code=201, summary="Make a key", responses=answers(_MADE, KeyExists, *_BODY_ERRORS))
async def make_key(body: KeyBody, store: StoreDep, actor: ActorDep) -> KeyWithToken:
    """Keep the token where secrets are kept: only its hash is stored."""
    return await store.write(_make, body, actor)


@router.post(
    "/{name}/rotate",
    summary="Give a key another token",
    responses=answers(_ROTATED, NoSuchKey, KeyOver, *_BODY_ERRORS),
)
async def rotate_key(
    name: Name, services: ServicesDep, actor: ActorDep, body: Annotated[RotateBody | None, Body()] = None
) -> KeyWithToken:
    """The old token is good for another day, or for `grace_s`; with 0 it ends at once. Caps and history stay."""
    rotated = await services.store.write(_rotate, name, body or RotateBody(), actor)
    services.identities.forget()
    return rotated


@router.delete("/{name}", summary="Revoke a key", responses=answers(_REVOKED, NoSuchKey))
async def revoke_key(name: Name, services: ServicesDep, actor: ActorDep) -> KeyRevoked:
    """At once and for good. Its jobs go on; its name stays taken, for the record. May be repeated."""
    revoked = await services.store.write(_revoke, name, actor)
    services.identities.forget()
    return revoked


def _list(session: Session) -> KeyList:
    return KeyList(data=[_view(session, row) for row in keys.list_keys(session)])


def _make(session: Session, body: KeyBody, actor: Actor) -> KeyWithToken:
    if keys.get_key(session, body.name) is not None:
        raise KeyExists
    try:
        token = keys.create_key(session, body.name, given(body.caps), scopes=body.scopes, expires_at=body.expires_at)
    except IntegrityError as error:
        raise KeyExists from error  # of two that were sent together
    audit.note(session, actor, AuditAction.KEY_CREATE, body.name, body.model_dump(mode="json", exclude={"name"}))
    return KeyWithToken(key=_view(session, _named(session, body.name)), token=token)


def _rotate(session: Session, name: str, body: RotateBody, actor: Actor) -> KeyWithToken:
    key = _named(session, name)
    if key.revoked_at is not None:
        raise KeyOver
    token = keys.rotate_key(session, key, body.grace_s, expires_at=body.expires_at)
    audit.note(session, actor, AuditAction.KEY_ROTATE, name, body.model_dump(mode="json", exclude_none=True))
    return KeyWithToken(key=_view(session, key), token=token)


def _revoke(session: Session, name: str, actor: Actor) -> KeyRevoked:
    key = _named(session, name)
    changed = keys.revoke_key(session, key)
    if changed:
        audit.note(session, actor, AuditAction.KEY_REVOKE, name)
    return KeyRevoked(changed=changed, key=_view(session, key))


def _named(session: Session, name: str) -> ApiKey:
    key = keys.get_key(session, name, lock=True)
    if key is None:
        raise NoSuchKey
    session.refresh(key)
    return key


def _view(session: Session, row: ApiKey) -> Key:
    spent = key_spent(session, row.id)
    used = {cap: getattr(spent, cap) for cap in CAPS}
    used |= {"jobs": jobs_in_flight(session, row.id), "jobs_per_day": jobs_of_today(session, row.id)}
    used["usd"] = Decimal(used["usd"])
    return Key(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        scopes=[Scope(scope) for scope in row.scopes],
        state=_state(row),
        caps=Caps(**{name: getattr(row, f"budget_{name}") for name in (*CAPS, *QUOTAS)}),
        used=Caps(**used),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
        previous_until=row.previous_until,
    )


def _state(row: ApiKey) -> Literal["active", "expired", "revoked"]:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= datetime.now(UTC) else "active"
