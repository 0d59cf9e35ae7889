"""What endpoints ask for: the application's long-lived parts, and the refusal of query parameters nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from api.doorbell import Doorbell
from api.errors import FieldError, Invalid, UnknownKey
from api.feed import Feed
from api.store import Store
from db.keys import find_key
from db.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that live as long as the application."""

    settings: Settings
    store: Store
    feed: Feed
    doorbell: Doorbell


def _services(request: Request) -> Services:
    return cast(Services, request.app.state.services)


def _store(request: Request) -> Store:
    return _services(request).store


def _feed(request: Request) -> Feed:
    return _services(request).feed


def _doorbell(request: Request) -> Doorbell:
    return _services(request).doorbell


async def _key_id(request: Request) -> str | None:
    """The API key of the request: None without one. What a key may do is not asked here, only what it may spend.

    Raises:
        UnknownKey: there is an Authorization header, and its key is none of ours.
    """
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    key_id = await _store(request).read(find_key, token.strip()) if scheme.lower() == "bearer" else None
    if key_id is None:
        raise UnknownKey(headers={"WWW-Authenticate": "Bearer"})
    return key_id


KeyDep = Annotated[str | None, Depends(_key_id)]
ServicesDep = Annotated[Services, Depends(_services)]
StoreDep = Annotated[Store, Depends(_store)]
FeedDep = Annotated[Feed, Depends(_feed)]
DoorbellDep = Annotated[Doorbell, Depends(_doorbell)]


def known_parameters(request: Request) -> None:
    """Refuse a query parameter that the operation does not have: `?sate=running` must not list every job.

    Raises:
        Invalid: it names the parameter and lists the known ones.
    """
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"]
    unknown = [name for name in dict.fromkeys(request.query_params.keys()) if name not in known]
    if not unknown:
        return
    text = f"unknown parameter; this operation knows {', '.join(known) or 'none'}"
    errors = [FieldError(pointer=f"?{name}", detail=text) for name in unknown]
    raise Invalid("; ".join(f"?{name}: {text}" for name in unknown), errors=errors)
