"""Who may do what: every request is asked for a key before anything of it is routed or read.

An address that is not listed as open is closed, so an endpoint that is added tomorrow asks for a key too.

    KERNELWRIGHT_AUTH=loopback   (as it comes) who speaks from this machine needs no key; everybody else does
    KERNELWRIGHT_AUTH=required   everybody needs one; listening beyond loopback is refused without this

A key comes as `Authorization: Bearer kw_live_...`. For pages in a browser, which cannot send that, the browser's own
password dialog does: any user name, and the key as the password.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.deps import Services
from api.errors import CrossSite, MissingKey, MissingScope, UnknownKey
from api.handlers import DATABASE_AWAY, unavailable
from api.limiting import Room
from db import vocabulary
from db.keys import Identity, UnusableKey
from db.settings import is_loopback

OPEN: Final = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})
"""Metrics have a token of their own (`api.metrics`)."""
OPEN_FOLDERS: Final = ("/static/",)
ADMIN: Final = ("/v1/keys", "/v1/audit")
FLEET: Final = ("/v1/workers", "/v1/queues")
"""Everybody who reads may look at these, and only admins change them."""

_LOOKING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_EVERYTHING: Final = frozenset({vocabulary.Scope.ADMIN})

log = structlog.get_logger("api")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the key, or nobody's on this very machine; what they may do, and from where."""

    key_id: str | None
    name: str | None
    scopes: frozenset[vocabulary.Scope]
    address: str | None
    request_id: str

    def check(self, needed: vocabulary.Scope) -> None:
        """Raises MissingScope."""
        if needed not in self.scopes and vocabulary.Scope.ADMIN not in self.scopes:
            raise MissingScope(_lacks(self, needed))


def needed_scope(method: str, path: str) -> vocabulary.Scope | None:
    """What a key must allow for this request; None where no key is asked for."""
    if path in OPEN or path.startswith(OPEN_FOLDERS):
        return None
    if _within(path, ADMIN):
        return vocabulary.Scope.ADMIN
    if method in _LOOKING:
        return vocabulary.Scope.READ
    return vocabulary.Scope.ADMIN if _within(path, FLEET) else vocabulary.Scope.SUBMIT


class AccessMiddleware:
    """Puts the `Caller` into the request's state, or raises what `FrontMiddleware` answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needed = needed_scope(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if needed is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        services: Services = scope["app"].state.services
        try:
            caller = await _caller(services, scope, headers)
        except (MissingKey, UnknownKey):
            await services.limiter.stranger(_address(scope))
            raise
        room = None if caller.key_id is None else await services.limiter.key(caller.key_id)
        _check_site(scope["method"], headers)
        caller.check(needed)
        scope["state"]["caller"] = caller
        with structlog.contextvars.bound_contextvars(key=caller.name):
            await self._app(scope, receive, send if room is None else _saying(room, send))


def _saying(room: Room, send: Send) -> Send:
    async def said(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(room.headers())
        await send(message)

    return said


def _address(scope: Scope) -> str | None:
    return scope["client"][0] if scope.get("client") else None


async def _caller(services: Services, scope: Scope, headers: Headers) -> Caller:
    address = _address(scope)
    request_id = scope["state"]["request_id"]
    header = headers.get("authorization")
    if header is not None:
        who = await _identified(services, _token(header), _challenge(scope["path"]))
        return Caller(who.id, who.name, who.scopes, address, request_id)
    if services.settings.auth == "loopback" and spoken_here(address, headers):
        return Caller(None, None, _EVERYTHING, address, request_id)
    raise MissingKey(headers=_challenge(scope["path"]))


async def _identified(services: Services, token: str | None, challenge: Mapping[str, str]) -> Identity:
    if token is None:
        raise UnknownKey(headers=challenge)
    try:
        who = await services.identities.of(token)
    except UnusableKey as error:
        raise UnknownKey(str(error), headers=challenge) from error
    except DATABASE_AWAY as error:
        raise unavailable(error, "authentication") from error
    return who


def spoken_here(address: str | None, headers: Headers) -> bool:
    """Whether a request comes from a program of this machine and was not passed on by a proxy.

    The name that it was sent to must be this machine's too: a foreign page whose name resolves to 127.0.0.1 would
    otherwise be served by the browser of somebody who runs Kernelwright.
    """
    if address is None or not is_loopback(address) or any(name in headers for name in _FORWARDED):
        return False
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


def _token(header: str) -> str | None:
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip() or None
    if scheme.lower() != "basic":
        return None
    try:
        _, colon, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return password if colon else None


def _challenge(path: str) -> dict[str, str]:
    # Only pages make a browser ask for a password: a program that gets one wrong wants an error, not a dialog.
    how = "Bearer" if path.startswith("/v1/") else 'Basic realm="Kernelwright: any name, and a key as the password"'
    return {"WWW-Authenticate": how}


def _check_site(method: str, headers: Headers) -> None:
    """Raises CrossSite. A browser sends a remembered password, and reaches loopback, for any page that asks it to."""
    bearer = headers.get("authorization", "").lower().startswith("bearer ")
    if not bearer and method not in _LOOKING and _foreign(headers):
        raise CrossSite


def _foreign(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("none", "same-origin")
    origin = headers.get("origin")  # what an older browser says
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def _lacks(caller: Caller, needed: vocabulary.Scope) -> str:
    has = ", ".join(sorted(caller.scopes))
    return f'this needs the scope "{needed}", and the key "{caller.name}" has {has}: use another key, or ask an admin'


def _within(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
