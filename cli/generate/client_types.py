"""Writes cli/client/types.py from the service's OpenAPI document: `python -m cli.generate.client_types`.

To be run when the API's schemas changed; tests/unit/cli/client/test_surface.py fails while the file is not current.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).resolve().parents[1] / "client" / "types.py"
_WIDTH = 120
_HEAD = '''"""What the REST API takes and answers, as types. `python -m cli.generate.client_types` writes this file.

They are dictionaries at run time, exactly what came over the wire, so that `--json` can print what it got.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

# The one of `typing` is refused by pydantic before Python 3.12.
from typing_extensions import TypedDict

Json: TypeAlias = dict[str, Any]
'''
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# An object without a name of its own in the document, by the alternatives that it stands among.
_NAMED = {"ProblemChoice": "OwnProblem"}

Schema = Mapping[str, Any]


def document() -> dict[str, Any]:
    """The OpenAPI document of this checkout."""
    from api.app import create_app
    from db.settings import Settings

    return create_app(Settings()).openapi()


def schemas_of(document: Mapping[str, Any]) -> dict[str, Schema]:
    """The named schemas of the document, and those of answers that it only has an example of."""
    from pydantic import TypeAdapter

    from api.summary_schemas import ServiceSummary

    summary = TypeAdapter(ServiceSummary).json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
    named: dict[str, Schema] = dict(document["components"]["schemas"])
    return {**named, **summary.pop("$defs"), "ServiceSummary": summary}


def types_of(schemas: Mapping[str, Schema]) -> str:
    """The text of the module."""
    words = [_alias(name, schema) for name, schema in sorted(schemas.items()) if "enum" in schema]
    objects: list[str] = []
    unions: list[str] = []
    for name, schema in sorted(schemas.items()):
        if "anyOf" in schema:
            own = next(each for each in schema["anyOf"] if each.get("type") == "object")
            objects.append("\n".join(_object(_NAMED[name], own)))
            others = [_type(each) for each in schema["anyOf"] if each is not own]
            unions.append(f"{name}: TypeAlias = {' | '.join([*others, _NAMED[name]])}\n")
        elif "properties" in schema:
            objects.append("\n".join(_object(name, schema)))
    return "\n".join([_HEAD, *words]) + "\n\n" + "\n\n\n".join(objects) + "\n\n\n" + "\n".join(unions)


def _alias(name: str, schema: Schema) -> str:
    line = f"{name}: TypeAlias = {_type(schema)}"
    if len(line) <= _WIDTH:
        return f"{line}\n"
    values = "".join(f"    {json.dumps(value)},\n" for value in schema["enum"])
    return f"{name}: TypeAlias = Literal[\n{values}]\n"


def _object(name: str, schema: Schema) -> Iterator[str]:
    required = set(schema.get("required", ()))
    yield f"class {name}(TypedDict):"
    yield from _docstring(schema.get("description", ""))
    for field, value in schema["properties"].items():
        kind = _type(value)
        yield f"    {field}: {kind if field in required else f'NotRequired[{kind}]'}"


def _docstring(said: str) -> Iterator[str]:
    if not said:
        return
    paragraphs = [" ".join(each.split()) for each in said.split("\n\n")]
    first = textwrap.wrap(f'"""{paragraphs[0]}', _WIDTH - 7)
    rest = [line for each in paragraphs[1:] for line in ["", *textwrap.wrap(each, _WIDTH - 4)]]
    lines = [*first, *rest]
    if len(lines) == 1:
        lines[0] += '"""'
    else:
        lines.append('"""')
    yield from (f"    {line}".rstrip() for line in lines)
    yield ""


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(value) for value in schema['enum'])}]"
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list[{_type(items)}]"
    if kind == "object":
        return _mapping(schema)
    return _PLAIN.get(str(kind), "Any")


def _mapping(schema: Schema) -> str:
    values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    inner = _type(values) if isinstance(values, Mapping) else "Any"
    return "Json" if inner == "Any" else f"dict[str, {inner}]"


if __name__ == "__main__":
    PATH.write_text(types_of(schemas_of(document())), encoding="utf-8")
