"""Whether a Python type says the same as a JSON schema of the OpenAPI document; what differs, in words."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def value_of(kind: Any) -> Any:
    """A value of a parameter's type, never None."""
    kind = _not_none(kind)
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (Union, types.UnionType):
        return value_of(get_args(kind)[0])
    if kind in _PLAIN:
        return {str: "x", int: 1, float: 1.5, bool: True}[kind]
    return [] if origin is not None and issubclass(origin, list) else {}


def differences(kind: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """How the type of a parameter differs from its schema: in its words, or in what it takes at all."""
    kind = _not_none(kind)
    if "enum" in schema:
        words = get_args(kind) if get_origin(kind) is Literal else None
        if words is None or set(words) != set(schema["enum"]):
            yield f"{kind} is not one of {schema['enum']}"
    elif schema.get("type") == "array":
        # One value is sent as well as several.
        if list not in {get_origin(each) for each in get_args(kind)} | {get_origin(kind)}:
            yield f"{kind} is not a list"
    elif _PLAIN.get(kind) != schema.get("type"):
        yield f"{kind} is not {schema.get('type')}"


def _not_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        others = [each for each in get_args(kind) if each is not type(None)]
        if len(others) == 1:
            return others[0]
    return kind
