"""The client has a method for every operation of the service, and both say the same: addresses, parameters, answers.

A new operation fails here until it has a method in one of cli/client/*_calls.py, or a reason in `NOT_CALLED`.
"""

from __future__ import annotations

import inspect
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from cli.client import AsyncClient, Client
from cli.client.calls import Call, data, operation, text
from cli.client.export_calls import NamedFile
from cli.generate.client_types import PATH, document, schemas_of, types_of
from tests.support.wire_types import differences, value_of

NOT_CALLED = {
    "GET /healthz": "for what keeps the process running; `readyz` says more",
    "GET /metrics": "for Prometheus",
}
NOT_OFFERED = {
    # Negotiation and caching are the client's own affair, and a held-back submission is what `wait` is for.
    "header": {"accept", "if-none-match", "prefer", "last-event-id"},
    "query": set[str](),
}
DOCUMENT = document()
OPERATIONS: dict[str, dict[str, Any]] = {
    f"{method.upper()} {path}": each for path, methods in DOCUMENT["paths"].items() for method, each in methods.items()
}


@dataclass(frozen=True)
class Described:
    """A method of the client, with the call that it makes when every parameter is given."""

    name: str
    kinds: dict[str, Any]
    answer: Any
    call: Call[Any]

    @property
    def operation(self) -> str:
        return f"{self.call.method} {self.call.template}"


def _described(name: str, method: operation[..., Any]) -> Described:
    hints = get_type_hints(method.describe)
    (answer,) = get_args(hints.pop("return"))
    return Described(name, hints, answer, method.describe(None, **{key: value_of(kind) for key, kind in hints.items()}))


METHODS = {
    name: _described(name, method)
    for name in dir(Client)
    if isinstance(method := inspect.getattr_static(Client, name), operation)
}


def test_the_types_are_those_of_the_document() -> None:
    current = types_of(schemas_of(DOCUMENT))
    assert PATH.read_text(encoding="utf-8") == current, "run: python -m cli.generate.client_types"


def test_every_operation_has_a_method_or_a_reason() -> None:
    called = {each.operation for each in METHODS.values()}
    assert called - set(OPERATIONS) == set()
    assert set(OPERATIONS) - called == set(NOT_CALLED)


def test_both_clients_have_the_same_surface() -> None:
    # `close` is httpx's word for the one, `aclose` for the other.
    own = [{name for name in dir(kind) if not name.startswith("_")} for kind in (Client, AsyncClient)]
    assert own[0] ^ own[1] == {"close", "aclose"}
    assert all(inspect.getattr_static(AsyncClient, name) is inspect.getattr_static(Client, name) for name in METHODS)


@pytest.mark.parametrize("where", ["query", "header"])
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - set(NOT_CALLED)))
def test_every_parameter_of_an_operation_is_offered_and_no_other(name: str, where: str) -> None:
    wanted = {each["name"] for each in OPERATIONS[name].get("parameters", ()) if each["in"] == where}
    calls = [each.call for each in METHODS.values() if each.operation == name]
    sent = {key.lower() for call in calls for key in (call.query if where == "query" else call.headers)}
    assert wanted - sent <= NOT_OFFERED[where]
    assert sent - wanted == set()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_parameter_takes_what_the_document_says(name: str) -> None:
    method = METHODS[name]
    schemas = {each["name"]: each["schema"] for each in OPERATIONS[method.operation].get("parameters", ())}
    wrong: list[str] = []
    for key in {**method.call.query, **method.call.at}:
        # `wait_s` goes out as `wait`; `dry_run` is a method of its own.
        kind = method.kinds.get(key, method.kinds.get(f"{key}_s"))
        if kind is not None:
            wrong += [f"{key}: {each}" for each in differences(kind, _resolved(schemas[key]))]
    assert wrong == []
    assert set(method.call.at) == {each["name"] for each in _parameters(method.operation, "path")}
    method.call.path.format()  # nothing is left to fill in


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_body_fits_the_schema(name: str) -> None:
    method = METHODS[name]
    content = OPERATIONS[method.operation].get("requestBody", {}).get("content", {})
    assert (method.call.body is not None) == bool(content)
    if not content or "body" in method.kinds:
        return  # a whole body is typed by the document's own schema
    fields = _fields(content["application/json"]["schema"])
    assert set(method.call.body) == set(fields)
    enums = {key: kind for key, kind in method.kinds.items() if "enum" in fields.get(key, {})}
    assert [each for key, kind in enums.items() for each in differences(kind, fields[key])] == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_answer_is_what_the_example_is(name: str) -> None:
    method = METHODS[name]
    if method.call.read is text or method.answer is NamedFile:
        assert method.answer in (str, NamedFile)  # no JSON
        return
    examples = [
        media["example"]
        for status, answer in OPERATIONS[method.operation]["responses"].items()
        if status in ("200", "201", "202") and (media := answer["content"].get("application/json"))
    ]
    read = [example["data"] if method.call.read is data else example for example in examples]
    assert read
    # One operation answers several things, such as a job or a dry run of it; one of its examples is this one.
    assert any(_fits(method.answer, example) for example in read), (method.answer, read)


def test_an_example_that_differs_would_be_found() -> None:
    job = OPERATIONS["GET /v1/jobs/{job_id}"]["responses"]["200"]["content"]["application/json"]["example"]
    kind = METHODS["job"].answer
    assert _fits(kind, job)
    assert not _fits(kind, job | {"state": "asleep"})
    assert not _fits(kind, job | {"extra": 1})
    assert not _fits(kind, {key: value for key, value in job.items() if key != "version"})


def _fits(kind: Any, example: Any) -> bool:
    """Whether the example has the type's fields and no other, each with a value of its type."""
    adapter, whole = TypeAdapter(kind), deepcopy(example)
    try:
        adapter.validate_python(whole, strict=True)
    except ValidationError as error:
        # The document's examples come without their nulls; a field that cannot be null still fails with one.
        for each in error.errors():
            if each["type"] == "missing":
                _place(whole, each["loc"])
    try:
        read = adapter.validate_python(whole, strict=True)
    except ValidationError:
        return False
    return bool(read == whole)  # a field that the type does not have is dropped by the adapter


def _place(whole: Any, path: tuple[int | str, ...]) -> None:
    for step in path[:-1]:
        # Beside keys and indices a path has the names of a union's members.
        if isinstance(whole, list) or step in whole:
            whole = whole[step]
    whole[path[-1]] = None


def _parameters(name: str, where: str) -> list[dict[str, Any]]:
    return [each for each in OPERATIONS[name].get("parameters", ()) if each["in"] == where]


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else DOCUMENT["components"]["schemas"][reference.rpartition("/")[2]]


def _fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    choices = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return {key: _resolved(value) for key, value in _resolved(choices[0])["properties"].items()}
