"""The REST API as a page: each operation of the OpenAPI document, its scope, parameters, body, answers, examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from api.app import create_app
from cli.reference.markdown import table
from db.settings import Settings

_HEAD = """# The REST API

Written by `python -m cli.reference` from the OpenAPI document, which a running service has at `/openapi.json` (and to
try out at `/docs`). A machine should read that; this page is for people.

Bodies and answers are JSON. Times are RFC 3339 in UTC, durations end in `_s` or `_us`, money is a decimal string. Every
error is `application/problem+json` with `type`, `title`, `status`, `detail` and `request_id`, and says what to send
instead. Besides the answers named below, any operation may answer 422 (it does not fit; `errors` names the field), 500
and 503 (with `Retry-After`), and where keys are required 401, 403 and 429: [keys](../keys.md). Fields that nobody knows
are refused. Values in examples are made up.
"""
_EVERYWHERE = frozenset({"401", "403", "422", "429", "500", "503"})
_BODY_ERRORS = frozenset({"400", "413", "415"})
"""Of every operation with a body: no JSON, too large, another type."""

Json = Mapping[str, Any]


def page() -> str:
    """The whole page."""
    document = create_app(Settings(auth="required")).openapi()
    operations = [(path, m, o) for path, methods in document["paths"].items() for m, o in methods.items()]
    parts = [_HEAD, _contents(document["tags"], operations)]
    for tag in document["tags"]:
        parts.append(f"## {tag['name']}\n\n{tag['description']}\n")
        of_tag = (entry for entry in operations if entry[2]["tags"][0] == tag["name"])
        parts += [_Operation(document, *entry).text() for entry in of_tag]
    return "\n".join(parts)


def _contents(tags: Iterable[Json], operations: Iterable[tuple[str, str, Json]]) -> str:
    lines = ["| | operation | what |", "|---|---|---|"]
    for tag in tags:
        of_tag = [entry for entry in operations if entry[2]["tags"][0] == tag["name"]]
        names = [tag["name"], *[""] * len(of_tag)]
        lines += [
            f"| {name} | `{m.upper()} {path}` | {o['summary']} |"
            for name, (path, m, o) in zip(names, of_tag, strict=False)
        ]
    return "\n".join(lines) + "\n"


class _Operation:
    """One operation, and the document that its references lead into."""

    def __init__(self, document: Json, path: str, method: str, operation: Json) -> None:
        self._schemas: Json = document["components"]["schemas"]
        self._path, self._method, self._operation = path, method, operation

    def text(self) -> str:
        parts = [
            f"### {self._method.upper()} {self._path}",
            f"{self._operation['summary']}. {self._operation.get('description', '')}".strip(),
            self._scope(),
            *self._parameters(),
            *self._body(),
            *self._answers(),
        ]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def _scope(self) -> str:
        scopes = [scope for entry in self._operation.get("security", ()) for scope in entry.get("key", ())]
        return f"Scope: `{scopes[0]}`." if scopes else "Needs no key."

    def _parameters(self) -> Iterator[str]:
        parameters = self._operation.get("parameters", ())
        if parameters:
            rows = [
                (each["name"], each["in"], self._type(each["schema"]), _says(each["schema"])) for each in parameters
            ]
            yield table(("parameter", "in", "type", "what"), rows)

    def _body(self) -> Iterator[str]:
        content = self._operation.get("requestBody", {}).get("content", {}).get("application/json")
        if not content:
            return
        schema = content["schema"]
        choices = [self._resolved(each) for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
        for choice in choices:
            rows = list(self._fields(choice, ""))
            if rows:
                yield table(("field of the body", "type", "what"), rows)
            for example in choice.get("examples", ())[:1]:
                yield _example(example)

    def _fields(self, schema: Json, prefix: str) -> Iterator[tuple[str, str, str]]:
        """A row for each field, with those of its objects after it."""
        required = schema.get("required", ())
        for name, field in schema.get("properties", {}).items():
            what = ("required; " if name in required else "") + _says(field)
            yield f"{prefix}{name}", self._type(field), what.rstrip("; ")
            inner = self._resolved(next(_without_null(field)))
            if inner.get("type") == "object":
                yield from self._fields(inner, f"{prefix}{name}.")

    def _answers(self) -> Iterator[str]:
        left_out = _EVERYWHERE | (_BODY_ERRORS if "requestBody" in self._operation else frozenset())
        answers = {status: answer for status, answer in self._operation["responses"].items() if status not in left_out}
        rows = [
            (status, answer["description"], ", ".join(answer.get("content", ()))) for status, answer in answers.items()
        ]
        yield table(("answer", "when", "as"), sorted(rows))
        for status, answer in answers.items():
            example = answer.get("content", {}).get("application/json", {}).get("example")
            if status.startswith("2") and example is not None:
                yield _example(example)
                return

    def _resolved(self, schema: Json) -> Json:
        reference = schema.get("$ref", "")
        return self._schemas[reference.rpartition("/")[2]] if reference else schema

    def _type(self, schema: Json) -> str:
        kinds = [self._plain_type(self._resolved(choice)) for choice in _without_null(schema)]
        return " or ".join(dict.fromkeys(kinds))

    def _plain_type(self, schema: Json) -> str:
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        if values:
            return ", ".join(f"`{value}`" for value in values)
        if schema.get("type") == "array":
            return f"list of {self._type(schema.get('items', {}))}"
        if "anyOf" in schema:
            return self._type(schema)
        kind = schema.get("format") or schema.get("type", "any")
        bounds = [f"{sign} {schema[name]:g}" for name, sign in _BOUNDS if abs(schema.get(name, 1e300)) < 1e15]
        return " ".join([kind, ", ".join(bounds)]).strip()


_BOUNDS = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))


def _without_null(schema: Json) -> Iterator[Json]:
    choices = schema.get("anyOf") or schema.get("oneOf") or [schema]
    yield from (choice for choice in choices if choice.get("type") != "null")


def _says(schema: Json) -> str:
    """The description, wherever among the choices it stands, and the default."""
    said = [each["description"] for each in (schema, *_without_null(schema)) if "description" in each]
    default = schema.get("default")
    plain = default is not None and not isinstance(default, dict | list)
    return "; ".join([*said[:1], *([f"default `{json.dumps(default)}`"] if plain else [])])


def _example(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"
