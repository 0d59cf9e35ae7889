"""The reference of the REST API, written from its OpenAPI document: nothing is fetched from elsewhere to read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from api.openapi import SCHEME, TAGS
from api.pages.frame import render

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Shown:
    """An example of a body or of an answer, with what stands above it."""

    name: str
    media_type: str
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, ready to be written down."""

    method: str
    path: str
    summary: str
    description: str
    scope: str | None
    """What a key must allow; None where nobody is asked for one."""
    parameters: tuple[tuple[str, str, str, str], ...]
    """Name, place, what it may be, and what it means."""
    bodies: tuple[Shown, ...]
    answers: tuple[Shown, ...]
    refusals: tuple[tuple[str, str], ...]
    """Status and titles."""

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return f"{self.method} {self.path}".replace("/", "-").replace(" ", "").replace("{", "").replace("}", "")


@router.get("/docs")
async def show_reference(request: Request) -> Response:
    """All operations by their subject, each with its parameters and examples."""
    document = request.app.openapi()
    operations = list(_operations(document))
    subjects = [
        (tag["name"], tag["description"], [each for name, each in operations if name == tag["name"]]) for tag in TAGS
    ]
    return render(request, "reference.html.j2", info=document["info"], subjects=subjects)


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield operation["tags"][0], _operation(method.upper(), path, operation, schemas)


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Operation:
    answers = operation["responses"]
    return Operation(
        method,
        path,
        operation["summary"],
        operation.get("description", ""),
        next((each[SCHEME][0] for each in operation["security"] if SCHEME in each), None),
        tuple(_parameter(each, schemas) for each in operation.get("parameters", ())),
        tuple(_shown("Body", operation.get("requestBody", {}))),
        tuple(shown for status, each in answers.items() if status < "400" for shown in _shown(status, each)),
        tuple((status, each["description"]) for status, each in answers.items() if status >= "400"),
    )


def _parameter(parameter: Mapping[str, Any], schemas: Mapping[str, Any]) -> tuple[str, str, str, str]:
    named = parameter["schema"]
    schema = schemas[named["$ref"].rpartition("/")[2]] | named if "$ref" in named else named
    what = " | ".join(str(kind) for kind in schema.get("enum", [schema.get("type", "any")]))
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
    needed = ["required"] if parameter.get("required") else []
    default = [f"default {schema['default']}"] if schema.get("default") is not None else []
    said = ", ".join([what, *needed, *bounds, *default])
    return parameter["name"], parameter["in"], said, parameter.get("description", "")


_BOUNDS = {"minimum": "at least", "maximum": "at most"}


def _shown(name: str, entry: Mapping[str, Any]) -> Iterator[Shown]:
    for media_type, media in entry.get("content", {}).items():
        examples = media.get("examples", {})
        example = media.get("example", next((each.get("value") for each in examples.values()), None))
        if example is not None:
            text = example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
            yield Shown(name, media_type, text)
