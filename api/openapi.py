"""The OpenAPI document: an example for each answer, and the one error model that every operation refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from api.errors import ApiError, Internal, Invalid, ProblemDocument, Responses, Unavailable, responses

TAGS = [
    {"name": "jobs", "description": "Submit a search, follow it, take its best kernel."},
    {"name": "requests", "description": "Ask in plain words; look at what is proposed; confirm it."},
    {"name": "candidates", "description": "What was tried and what the judge found."},
    {"name": "ask/tell", "description": "Propose candidates from outside: take a question, bring back an answer."},
    {"name": "record", "description": "What is on record of a search: decisions, prompts, answers, the judge's seed."},
    {"name": "problems", "description": "The bundled operations."},
    {"name": "knowledge", "description": "What earlier searches taught, and what knowing it is worth."},
    {"name": "workers", "description": "Who does the work, on what."},
    {"name": "health", "description": "For load balancers and orchestrators."},
]

COMMON_RESPONSES = responses(Invalid, Unavailable, Internal)
"""What any operation may answer."""


def example(description: str, value: Any, media_type: str = "application/json") -> dict[str, Any]:
    """The OpenAPI entry of an answer with its example."""
    return {"description": description, "content": {media_type: {"example": value}}}


def answers(good: Mapping[int, dict[str, Any]], *errors: type[ApiError]) -> Responses:
    """The `responses` of an operation: what it answers when all is well, and the errors that it may raise."""
    described: Responses = {status: answer for status, answer in good.items()}
    return described | responses(*errors)


def install(app: FastAPI) -> None:
    """Have the application describe itself; the document is made once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
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
    return document


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out or it is a string: `X or null` is an optional X, and the text "null" is no null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    (only,) = choices
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **only}
