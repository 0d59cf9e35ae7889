"""Every KERNELWRIGHT_ variable as a page: from the settings classes, the commands' options and compose's example."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cli.main import COMMANDS
from cli.reference.markdown import table
from cli.service import KEY_VARIABLE
from db.settings import Settings
from search.llm_options import PREFIX as LLM_PREFIX
from search.llm_options import LlmOptions, ModelOptions

_COLUMNS = ("is", "default", "what")
_PREFIX = "KERNELWRIGHT_"
_SHARED = {_PREFIX + name.upper() for name in Settings.model_fields}
_COMPOSE = Path(__file__).parents[2] / "deploy" / "compose.env.example"
_HEAD = """# Settings

Written by `python -m cli.reference` from the code that reads them. All settings are environment variables; there is no
file of settings. What a process cannot use it refuses at its start, with the name of the variable.
"""
_MODELS = """Read by workers of the queue `llm`, and by the API for estimates. Keys of providers are read under the
names that litellm knows (`OPENAI_API_KEY`, `ANTHROPIC_API_KEY`, ...).
"""
_EACH_MODEL = """`KERNELWRIGHT_LLM_MODELS` is a JSON object, or the name of a file that holds one. Its keys are
models in litellm's spelling, or `*` for what is meant for every model; its values are objects with these fields:
"""
_OF_COMPOSE = """Set in `.env` beside it; [deploy/compose.env.example](../../deploy/compose.env.example) is to
be copied.
"""


def page() -> str:
    """The whole page."""
    head = ("variable", *_COLUMNS)
    parts = [
        _HEAD,
        "## Of every process: API, workers and `kernelwright up`\n",
        table(head, _rows(Settings, _PREFIX)),
        "## Language models\n",
        _MODELS,
        table(head, _rows(LlmOptions, LLM_PREFIX)),
        _EACH_MODEL,
        table(("field", *_COLUMNS), _rows(ModelOptions, "")),
        "## Of the command line\n",
        "Each is also an option of the commands named.\n",
        table(head, _options()),
        "## Of `docker-compose.yml` alone\n",
        _OF_COMPOSE,
        table(head, _compose()),
    ]
    return "\n".join(parts)


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    said = _docstrings(model)
    for name, field in model.model_fields.items():
        spelled = prefix + name.upper() if prefix else name
        yield spelled, _type(field), _default(field), said[name]


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """What stands below each field."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    said = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        words = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and below.value.value
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(words, str):
            said[field.target.id] = " ".join(words.split())
    return said


_NAMES = {
    SecretStr: "secret",
    Path: "path",
    str: "text",
    bool: "true or false",
    float: "number",
    Decimal: "number",
    int: "whole number",
}


def _type(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    if get_origin(field.annotation) in (dict, Mapping):
        return "JSON"
    if get_origin(field.annotation) is tuple:
        return "words, separated by commas"
    kinds = get_args(field.annotation) or (field.annotation,)
    return next(name for kind, name in _NAMES.items() if kind in kinds)


def _default(field: FieldInfo) -> str:
    nothing = (None, PydanticUndefined, "")
    return "" if field.default in (*nothing, ()) else f"`{field.default}`"


def _options() -> Iterator[tuple[str, str, str, str]]:
    """Options that may come from a variable, each once with the commands that have it."""
    found: dict[str, tuple[Any, list[str]]] = {}
    for name, lazy in COMMANDS.items():
        for parameter in typer.main.get_command(lazy.load(name)).params:
            variable = getattr(parameter, "envvar", None)
            if isinstance(variable, str) and variable not in _SHARED:
                found.setdefault(variable, (parameter, []))[1].append(f"`{name}`")
    for variable, (parameter, commands) in sorted(found.items()):
        what = f"{parameter.help} `{parameter.opts[0]}` of {', '.join(commands)}"
        yield variable, "text", f"`{parameter.default}`" if parameter.default else "", what
    what = "The API key that every command sends to the service, as `Authorization: Bearer ...`."
    yield KEY_VARIABLE, "secret", "", what


def _compose() -> Iterator[tuple[str, str, str, str]]:
    """The variables of compose's example that no process of ours reads."""
    comment = ""
    for line in _COMPOSE.read_text(encoding="utf-8").splitlines():
        setting = re.fullmatch(rf"#?({_PREFIX}\w+)=(.*)", line)
        if setting is None:
            comment = line.removeprefix("#").strip()
        elif setting[1] not in _SHARED:
            yield setting[1], "text", f"`{setting[2]}`" if setting[2] else "", comment
