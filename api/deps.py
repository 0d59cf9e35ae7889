"""What endpoints ask for: the application's long-lived parts, and the refusal of query parameters nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from api.doorbell import Doorbell
from api.errors import FieldError, Invalid
from api.feed import Feed
from api.glances import Glances
from api.identities import Identities
from api.limiting import Limiter
from api.store import Store
from api.streams import Streams
from api.tails import Tails
from db.audit import Actor
from db.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that live as long as the application."""

    settings: Settings
    store: Store
    feed: Feed
    doorbell: Doorbell
    limiter: Limiter
    identities: Identities
    glances: Glances
    tails: Tails
    streams: Streams


# All of these are coroutines although none waits: FastAPI runs any other function in a thread, which takes ten times as
# long as what they do.
async def _services(request: Request) -> Services:
    return _of(request)


def _of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


async def _store(request: Request) -> Store:
    return _of(request).store


async def _feed(request: Request) -> Feed:
    return _of(request).feed


async def _glances(request: Request) -> Glances:
    return _of(request).glances


async def _doorbell(request: Request) -> Doorbell:
    return _of(request).doorbell


async def _key_id(request: Request) -> str | None:
    """The API key of the request: None on this very machine, where none is needed (`api.access`)."""
    key_id: str | None = request.state.caller.key_id
    return key_id


async def _actor(request: Request) -> Actor:
    """Who asks, for the audit log."""
    caller = request.state.caller
    return Actor(caller.key_id, caller.address, caller.request_id)


ActorDep = Annotated[Actor, Depends(_actor)]
KeyDep = Annotated[str | None, Depends(_key_id)]
ServicesDep = Annotated[Services, Depends(_services)]
StoreDep = Annotated[Store, Depends(_store)]
FeedDep = Annotated[Feed, Depends(_feed)]
GlancesDep = Annotated[Glances, Depends(_glances)]
DoorbellDep = Annotated[Doorbell, Depends(_doorbell)]


async def known_parameters(request: Request) -> None:
    """Refuse a query parameter that the operation does not have: `?sate=running` must not list every job.

    Raises:
        Invalid: it names the parameter and lists the known ones.
    """
    if not request.query_params:
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"]
    unknown = [name for name in dict.fromkeys(request.query_params.keys()) if name not in known]
    if not unknown:
        return
    text = f"unknown parameter; this operation knows {', '.join(known) or 'none'}"
    errors = [FieldError(pointer=f"?{name}", detail=text) for name in unknown]
    raise Invalid("; ".join(f"?{name}: {text}" for name in unknown), errors=errors)
