"""What endpoints ask for: the application's long-lived parts, and the refusal of query parameters nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute

from api.doorbell import Doorbell
from api.errors import FieldError, Invalid
from api.feed import Feed
from api.store import Store
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


ServicesDep = Annotated[Services, Depends(_services)]
StoreDep = Annotated[Store, Depends(_store)]
FeedDep = Annotated[Feed, Depends(_feed)]
DoorbellDep = Annotated[Doorbell, Depends(_doorbell)]


def known_parameters(request: Request) -> None:
    """Refuse a query parameter that the operation does not have: `?sate=running` must not list every job.

    Raises:
        Invalid: it names the parameter and lists the known ones.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = [parameter.alias for parameter in get_flat_dependant(route.dependant).query_params]
    unknown = [name for name in dict.fromkeys(request.query_params.keys()) if name not in known]
    if not unknown:
        return
    text = f"unknown parameter; this operation knows {', '.join(known) or 'none'}"
    errors = [FieldError(pointer=f"?{name}", detail=text) for name in unknown]
    raise Invalid("; ".join(f"?{name}: {text}" for name in unknown), errors=errors)
