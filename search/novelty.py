"""Has this been tried? A hash that does not see comments and white space, and a measure of how alike two sources are.

Two gates before the device, both on sources; the third, on what they are built into, is the judge's
(`worker.judge.artefacts`):

- `source_hash`: the same program, differently written down. Nothing is lost by refusing it.
- `nearest`: nearly the same program where something new was promised. Only proposals from nothing, rewrites and
  crossovers are held to it: a repair or a refinement is nearly its parent by intention.

An edit of parameters alone is never refused (`parameters_only`): other numbers can be all the difference.

The form that is hashed is our own walk over the syntax tree and not `ast.dump`, whose output changes between versions
of Python: workers of different versions must agree on what a duplicate is.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

from search.types import Operator

IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

NOVEL_OPERATORS = frozenset({Operator.SEED, Operator.TRANSLATE, Operator.REWRITE, Operator.CROSSOVER, Operator.PORT})
"""What promises something new, and is refused where it is nearly what there is."""

GRAM = 5
"""Tokens in a row that are compared as one: an exchanged name changes five of them, an inserted line a few more."""

NEARLY = 0.95
"""From this similarity on two sources count as the same idea. Measured by `benchmarks/novelty.py`."""

CODE_CHARS = 80
"""A string longer than this is read as the source of a kernel, word by word."""

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORDS = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")
_NUMBER = re.compile(r"(?:int:|float:)?-?\d")


def source_hash(source: str) -> str:
    """SHA-256 (hex) of the normalised source; of the text with its white space squeezed, where it does not parse."""
    try:
        form = "\n".join(_walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        form = "text:" + " ".join(source.split())
    return hashlib.sha256(form.encode("utf-8", "surrogatepass")).hexdigest()


def tokens(source: str) -> tuple[str, ...]:
    """The normalised source in words: the syntax tree's, and those of the kernels that it holds as strings."""
    try:
        parts = list(_walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tuple(_words(source))
    return tuple(word for part in parts for word in _expanded(part))


def similarity(one: Sequence[str], other: Sequence[str]) -> float:
    """Of two token sequences: the share of the runs of GRAM tokens that both have (Jaccard, as Broder, "On the
    resemblance and containment of documents", 1997); 1 for equal ones, 0 for nothing in common."""
    mine, theirs = _grams(one), _grams(other)
    return len(mine & theirs) / len(mine | theirs) if mine | theirs else 1.0


def parameters_only(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two token sequences differ in numbers and in nothing else."""
    return len(one) == len(other) and all(a == b or _is_number(a, b) for a, b in zip(one, other, strict=True))


def nearest(source: str, others: Iterable[tuple[str, str]], threshold: float = NEARLY) -> tuple[str, float] | None:
    """(id, similarity) of the most similar of the other (id, source), if it is nearly the same and not an edit of
    parameters alone; else None."""
    mine = tokens(source)
    best: tuple[str, float] | None = None
    for name, text in others:
        theirs = tokens(text)
        alike = similarity(mine, theirs)
        if alike < max(threshold, best[1] if best else 0.0) or parameters_only(mine, theirs):
            continue
        best = (name, alike)
    return best


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


def _expanded(part: str) -> Iterator[str]:
    """A part of the walk; a long string as the words of its code."""
    if not part.startswith("str:") or len(part) < CODE_CHARS:
        yield part
        return
    yield from _words(str(ast.literal_eval(part.removeprefix("str:"))))


def _words(code: str) -> Iterator[str]:
    return (found.group() for found in _WORDS.finditer(_COMMENTS.sub(" ", code)))


def _grams(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + GRAM]) for start in range(max(1, len(words) - GRAM + 1))} if words else set()


def _is_number(one: str, other: str) -> bool:
    return bool(_NUMBER.match(one) and _NUMBER.match(other))
