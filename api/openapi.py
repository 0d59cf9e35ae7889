"""The OpenAPI document: an example for each answer, and the one error model that every operation refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from api.access import needed_scope
from api.connections import HeadTooLarge, RequestTooSlow, TargetTooLong
from api.errors import (
    MEDIA_TYPE,
    ApiError,
    Internal,
    Invalid,
    MissingKey,
    MissingScope,
    ProblemDocument,
    Responses,
    TooManyRequests,
    TooSlow,
    Unavailable,
    UnknownKey,
    responses,
)

TAGS = [
    {"name": "jobs", "description": "Submit a search, follow it, take its best kernel."},
    {"name": "requests", "description": "Ask in plain words; look at what is proposed; confirm it."},
    {"name": "candidates", "description": "What was tried and what the judge found."},
    {"name": "ask/tell", "description": "Propose candidates from outside: take a question, bring back an answer."},
    {"name": "record", "description": "What is on record of a search: decisions, prompts, answers, the judge's seed."},
    {"name": "problems", "description": "The bundled operations."},
    {"name": "knowledge", "description": "What earlier searches taught, and what knowing it is worth."},
    {"name": "workers", "description": "Who does the work, on what."},
    {"name": "summary", "description": "The whole service in one call."},
    {"name": "webhooks", "description": "Be told what became of jobs, by signed requests to an address of yours."},
    {"name": "keys", "description": "Who may do what and use how much, and who did what. For admins."},
    {"name": "health", "description": "For load balancers and orchestrators."},
]

COMMON_RESPONSES = responses(RequestTooSlow, TargetTooLong, Invalid, HeadTooLarge, Unavailable, TooSlow, Internal)
"""What any operation may answer, the first before anybody looks which operation it is."""


SCHEME = "key"
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "kw_live_...",
    "description": "An API key. An operation names the scope that it needs; `admin` has all. See docs/keys.md.",
}
_ACCESS_ERRORS = (MissingKey, UnknownKey, MissingScope, TooManyRequests)


def example(description: str, value: Any, media_type: str = "application/json") -> dict[str, Any]:
    """The OpenAPI entry of an answer with its example."""
    return {"description": description, "content": {media_type: {"example": value}}}


def answers(good: Mapping[int, dict[str, Any]], *errors: type[ApiError]) -> Responses:
    """The `responses` of an operation: what it answers when all is well, and the errors that it may raise."""
    described: Responses = {status: answer for status, answer in good.items()}
    return described | responses(*errors)


def install(app: FastAPI, *, keyless: bool) -> None:
    """Have the application describe itself; the document is made once. `keyless`: on loopback no key is needed."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, keyless)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, keyless: bool) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        tags=TAGS,
        routes=app.routes,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    adapter = TypeAdapter(ProblemDocument)
    problem = adapter.json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {}) | {"ProblemDocument": problem}
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _never_null(parameter["schema"])
    _secure(document, keyless)
    return document


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out or it is a string: `X or null` is an optional X, and the text "null" is no null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    (only,) = choices
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **only}


def _secure(document: dict[str, Any], keyless: bool) -> None:
    """Say of each operation which scope its key must have, and what it answers without."""
    document["components"]["securitySchemes"] = {SCHEME: _BEARER}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            scope = needed_scope(method.upper(), path)
            if scope is None:
                operation["security"] = []
                continue
            operation["security"] = [{SCHEME: [scope.value]}, *([{}] if keyless else [])]
            _add_answers(operation["responses"], responses(*_ACCESS_ERRORS))


def _add_answers(answered: dict[str, Any], more: Responses) -> None:
    for status, entry in more.items():
        known = answered.setdefault(str(status), entry)
        if known is not entry:
            known["description"] = f"{entry['description']}; {known['description']}"
            known["content"][MEDIA_TYPE]["examples"] |= entry["content"][MEDIA_TYPE]["examples"]
