"""From what is raised below an endpoint to the one error form that clients see; pages are answered with a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg.errors
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.errors import MEDIA_TYPE, ApiError, BrokenJson, FieldError, Invalid, TooSlow, Unavailable, from_status
from api.pages.refusals import refusal, wants_page

log = structlog.get_logger("api")

# What each place of a request is called in a pointer; a body's own pointer is a JSON pointer in fragment form.
_PLACES = {"body": "#", "query": "?", "path": "path:", "header": "header:"}


DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeout)
"""What is raised while the database cannot be reached, or does not answer in time."""
_TOO_SLOW = (
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.IdleInTransactionSessionTimeout,
    PoolTimeout,
)
"""Of these the causes that a time limit of ours, or of Postgres, has ended."""


def install(app: FastAPI) -> None:
    """Register every handler on the application."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
    for kind in DATABASE_AWAY:
        app.add_exception_handler(kind, _database_error)
    app.add_exception_handler(InternalError, _aborted)
    app.add_exception_handler(DataError, _unstorable)
    app.add_exception_handler(UnicodeEncodeError, _unstorable)


def answer(request: Request, error: ApiError) -> Response:
    """The problem+json answer for an error; for a browser that asked for a page, a page that says the same."""
    if wants_page(request):
        return refusal(request, error)
    document = error.document(request.url.path, request.state.request_id)
    return Response(json.dumps(document), error.status, headers=error.headers, media_type=MEDIA_TYPE)


def field_errors(errors: Sequence[Any]) -> list[FieldError]:
    """Pydantic's findings as pointer and text, in the order found."""
    return [FieldError(pointer=pointer(error["loc"]), detail=_detail(error)) for error in errors]


def pointer(loc: Sequence[str | int]) -> str:
    """`("body", "budget", "usd")` is `#/budget/usd`; `("query", "limit")` is `?limit`."""
    place, *steps = loc
    # Pydantic marks an error in a mapping's key by this pseudo step.
    parts = [str(step) for step in steps if step != "[key]"]
    if place == "body":
        return "#" + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
    return _PLACES.get(str(place), f"{place}:") + ".".join(parts)


def _detail(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field"
    if error["type"] == "missing":
        return "is missing"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a JSON object"
    message = str(error["msg"])
    return message[:1].lower() + message[1:]


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return answer(request, error)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    broken = [each for each in found if each["type"] == "json_invalid"]
    if broken:
        return answer(request, _broken_json(str(error.body), int(broken[0]["loc"][1]), broken[0]["ctx"]["error"]))
    errors = field_errors(found)
    named = "; ".join(f"{each['pointer']}: {each['detail']}" for each in errors[:3])
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return answer(request, Invalid(named + more, errors=errors))


def _broken_json(body: str, position: int, why: str) -> BrokenJson:
    line = body.count("\n", 0, position) + 1
    column = position - body.rfind("\n", 0, position)
    return BrokenJson(f"the body is not JSON: line {line}, column {column}: {why}")


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {**(error.headers or {}), **_allowed(request)} if error.status_code == 405 else error.headers
    return answer(request, from_status(error.status_code, error.detail, headers))


def _allowed(request: Request) -> dict[str, str]:
    """All methods of the address: the router only names those of the first operation that it found there."""
    path = getattr(request.scope.get("route"), "path", None)
    methods = request.app.openapi()["paths"].get(path, {})
    return {"Allow": ", ".join(sorted(method.upper() for method in methods))} if methods else {}


async def _unstorable(request: Request, error: Exception) -> Response:
    # Such as a NUL in a path or a lone surrogate in a forged cursor: in bodies the schemas refuse them, with a pointer.
    log.warning("request.unstorable", why=str(error).partition("\n")[0], path=request.url.path)
    return answer(request, Invalid("a value in this request cannot be stored or looked up: no NUL, no other type"))


async def _database_error(request: Request, error: Exception) -> Response:
    return answer(request, unavailable(error, request.url.path))


async def _aborted(request: Request, error: Exception) -> Response:
    """Of what the driver calls internal only the end of a transaction that lay idle is no fault of ours to look for."""
    if isinstance(error, DBAPIError) and isinstance(error.orig, _TOO_SLOW):
        return await _database_error(request, error)
    raise error


def unavailable(error: Exception, where: str) -> Unavailable:
    """The answer while the database is away or too slow; why goes to the log, never to the client."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, _TOO_SLOW):
        log.warning("database.too_slow", why=str(cause).partition("\n")[0], path=where)
        return TooSlow()
    log.warning("database.unavailable", why=str(cause), path=where)
    return Unavailable()
