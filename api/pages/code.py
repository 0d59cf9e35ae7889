"""Sources as people read them: coloured lines, and what changed between two of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pygments
from markupsafe import Markup
from pygments.formatters import HtmlFormatter
from pygments.lexers.asm import GasLexer, LlvmLexer, ObjdumpLexer
from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.ptx import PtxLexer
from pygments.lexers.python import PythonLexer
from pygments.token import String

from api.pages.words import visible
from db.vocabulary import CodeKind

Token = tuple[Any, str]

MOST_CHARS = 200_000
"""Longer sources are shown without colours: a page must not take seconds."""
_LEXERS = {
    CodeKind.TTGIR: LlvmLexer,
    CodeKind.LLVM: LlvmLexer,
    CodeKind.PTX: PtxLexer,
    CodeKind.SASS: GasLexer,
    CodeKind.ASSEMBLY: ObjdumpLexer,
}
MOST_LINES = 4_000
"""Longer sources are not compared: difflib takes the square of it."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A line of a comparison: `kind` is its class (same, added, removed, place), `sign` what it begins with."""

    kind: str
    sign: str
    text: str


def _with_kernels(tokens: Iterable[Token]) -> Iterator[Token]:
    """A kernel in C++ or CUDA is one long string in a Python file: that string as the program that it is."""
    held: list[Token] = []
    for kind, text in tokens:
        if kind in String:
            held.append((kind, text))
            continue
        yield from _inside(held)
        held = []
        yield kind, text
    yield from _inside(held)


def _inside(held: Sequence[Token]) -> Iterator[Token]:
    text = "".join(part for _kind, part in held)
    if text.count("\n") < 3 or ";" not in text:
        yield from held
        return
    for _at, kind, part in CppLexer(stripnl=False).get_tokens_unprocessed(text):
        yield kind, part


def coloured(source: str, language: str) -> list[Markup]:
    """The lines of a candidate's file as HTML, everything in them escaped."""
    text = visible(source)
    if len(text) > MOST_CHARS:
        return [Markup.escape(line) for line in text.splitlines()]
    tokens: Iterable[Token] = PythonLexer(stripnl=False).get_tokens(text)
    if language in ("cpp", "cuda"):
        tokens = _with_kernels(tokens)
    return [Markup(line) for line in _html(tokens).splitlines()]


def coloured_code(text: str, kind: CodeKind) -> Markup:
    """Generated code as HTML, everything in it escaped."""
    shown = visible(text)
    if len(shown) > MOST_CHARS:
        return Markup.escape(shown)
    return Markup(_html(_LEXERS[kind](stripnl=False).get_tokens(shown)))


def _html(tokens: Iterable[Token]) -> str:
    # The formatter escapes every token and closes its spans at the end of each line.
    html: str = pygments.format(tokens, HtmlFormatter(nowrap=True))
    return html


def changes(before: str, after: str) -> list[Changed] | None:
    """What changed, with three lines around; empty when nothing did, None when the sources are too long to compare."""
    old, new = visible(before).splitlines(), visible(after).splitlines()
    if len(old) + len(new) > MOST_LINES:
        return None
    return [_changed(line) for line in list(difflib.unified_diff(old, new, lineterm=""))[2:]]


def _changed(line: str) -> Changed:
    if line.startswith("@@"):
        return Changed("place", "", line)
    kind = {"+": "added", "-": "removed"}.get(line[0], "same")
    return Changed(kind, line[0], line[1:])
