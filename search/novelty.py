"""Has this been tried? A hash of a source that does not see comments, white space and docstrings.

The form that is hashed is our own walk over the syntax tree and not `ast.dump`, whose output changes between versions
of Python: workers of different versions must agree on what a duplicate is.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator

IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_hash(source: str) -> str:
    """SHA-256 (hex) of the normalised source; of the text with its white space squeezed, where it does not parse."""
    try:
        form = "\n".join(_walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        form = "text:" + " ".join(source.split())
    return hashlib.sha256(form.encode("utf-8", "surrogatepass")).hexdigest()


def _walk(node: ast.AST) -> Iterator[str]:
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        # Empty fields are left out: newer versions of Python add fields that are empty for older syntax.
        if name in IGNORED_FIELDS or value is None and not isinstance(node, ast.Constant) or value == []:
            continue
        yield f".{name}"
        if name == "body" and isinstance(node, SCOPES):
            value = _without_docstring(value)
        yield from _field(value)
    yield ")"


def _field(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, ast.AST):
            yield from _walk(item)
        else:
            yield f"{type(item).__name__}:{item!r}"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body
