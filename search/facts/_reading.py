"""Reads one document of search/facts, and refuses what is not as it should be, with the file and the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, NoReturn

from search.hardware import NAMES

KINDS = ("hardware", "language", "technique")
LANGUAGES = ("triton", "cuda", "cpp")
BOUNDS = ("memory", "compute", "latency", "launch")
OP_FAMILIES = (
    "attention",
    "convolution",
    "embedding",
    "indexing",
    "loss",
    "matmul",
    "moe",
    "movement",
    "normalization",
    "optimizer",
    "pointwise",
    "quantization",
    "recurrence",
    "reduction",
    "sampling",
    "scan",
    "scatter",
    "softmax",
    "topk",
)
MIN_WORDS = 80
MAX_WORDS = 200

_FENCE = "+++"
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NEEDED = ("id", "title", "kind", "hardware", "languages", "op_families", "bounds", "confirmed", "sources")
_STRUCTURE = re.compile(r"^\s*(#|```|~~~|[-*+]\s|<<<<<<<|=======|>>>>>>>)")
"""What a line of text may not begin with: a fact is one paragraph wherever it is put."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact can be checked. Our own measurements and rules are named as files of the repository."""

    title: str
    publisher: str
    section: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One document."""

    id: str
    title: str
    kind: str
    text: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    op_families: tuple[str, ...]
    bounds: tuple[str, ...]
    sources: tuple[Source, ...]
    confirmed: date


class BadFact(ValueError):
    """A document of search/facts is not as it should be. The message names the file, the line and what to write."""


def read_fact(text: str, name: str) -> Fact:
    """The fact in a document; `name` is its file's name. Raises BadFact."""
    document = _Document(text, name)
    document.check_keys()
    if document.word("id", _ID.fullmatch, "an id is lower-case words joined by dashes") != name.removesuffix(".md"):
        document.fail("id", f"the id is the file's name, {name.removesuffix('.md')}")
    return Fact(
        id=document.values["id"],
        title=document.word("title", lambda title: 8 <= len(title) <= 90, "a title has 8 to 90 characters"),
        kind=document.word("kind", KINDS.__contains__, f"a kind is one of {', '.join(KINDS)}"),
        text=document.paragraph(),
        hardware=document.words("hardware", NAMES.__contains__, "a name that search.hardware does not have"),
        languages=document.words("languages", LANGUAGES.__contains__, f"no language of {', '.join(LANGUAGES)}"),
        op_families=document.words("op_families", OP_FAMILIES.__contains__, "no op family of search.facts.OP_FAMILIES"),
        bounds=document.words("bounds", BOUNDS.__contains__, f"no bound of {', '.join(BOUNDS)}"),
        sources=document.sources(),
        confirmed=document.day("confirmed"),
    )


class _Document:
    """A document split into its values and its text, with the lines where they stand."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.splitlines()
        fences = [at for at, line in enumerate(self.lines) if line.strip() == _FENCE][:2]
        if len(fences) < 2 or fences[0]:
            self.fail_at(1, f"a document begins with TOML between two lines of {_FENCE}")
        self.end = fences[1]
        try:
            self.values: Mapping[str, Any] = tomllib.loads("\n".join(self.lines[1 : self.end]))
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"at line (\d+)", str(error))
            self.fail_at(int(at[1]) + 1 if at else self.end + 1, str(error))

    def check_keys(self) -> None:
        """All keys that are needed, and no others."""
        for key in _NEEDED:
            if key not in self.values:
                self.fail_at(self.end + 1, f"{key} is missing")
        for key in self.values:
            if key not in _NEEDED:
                self.fail(key, f"unknown key {key!r}: {', '.join(_NEEDED)}")

    def word(self, key: str, good: Callable[[str], Any], what: str) -> str:
        """A string."""
        value = self.values[key]
        if not isinstance(value, str) or not good(value):
            self.fail(key, f"{value!r}: {what}")
        return value

    def words(self, key: str, good: Callable[[str], bool], what: str) -> tuple[str, ...]:
        """A list of different strings."""
        value = self.values[key]
        if not isinstance(value, list) or len(set(map(str, value))) < len(value):
            self.fail(key, f"{key} is a list of different strings")
        for word in value:
            if not isinstance(word, str) or not good(word):
                self.fail(key, f"{word!r} is {what}")
        return tuple(value)

    def day(self, key: str) -> date:
        """A date without a time."""
        value = self.values[key]
        if type(value) is not date:
            self.fail(key, f"{value!r} is no date: write 2026-11-21, without quotes")
        return value

    def sources(self) -> tuple[Source, ...]:
        """At least one source."""
        value = self.values["sources"]
        if not isinstance(value, list) or not value:
            self.fail("sources", "at least one [[sources]] is needed")
        return tuple(self._source(source) for source in value)

    def _source(self, source: object) -> Source:
        keys = {"title", "publisher", "section", "url"}
        if not isinstance(source, dict) or not {"title", "publisher"} <= source.keys() <= keys:
            self.fail("sources", f"a source has title and publisher, and section and url where known: {source!r}")
        if not all(isinstance(value, str) and value for value in source.values()):
            self.fail("sources", f"the values of a source are strings, and not empty: {source!r}")
        if not source.get("url", "https://").startswith(("https://", "http://")):
            self.fail("sources", f"{source['url']!r} is no URL")
        return Source(**source)

    def paragraph(self) -> str:
        """The text: one paragraph of a fact's length."""
        first = self.end + 1
        for at, line in enumerate(self.lines[first:], start=first + 1):
            if _STRUCTURE.match(line):
                self.fail_at(at, "a fact is one paragraph of prose: no headings, lists or fences")
        text = "\n".join(self.lines[first:]).strip()
        if "\n\n" in text:
            self.fail_at(first + 1, "a fact is one paragraph of prose: no blank lines in it")
        if not MIN_WORDS <= len(text.split()) <= MAX_WORDS:
            self.fail_at(first + 1, f"{len(text.split())} words: a fact has {MIN_WORDS} to {MAX_WORDS}")
        return " ".join(text.split())

    def fail(self, key: str, message: str) -> NoReturn:
        """Refuse the document for the value of that key."""
        head = enumerate(self.lines[: self.end], start=1)
        at = next((at for at, line in head if re.match(rf"(\[\[)?{re.escape(key)}\b", line)), 1)
        self.fail_at(at, message)

    def fail_at(self, line: int, message: str) -> NoReturn:
        """Refuse the document for that line."""
        raise BadFact(f"search/facts/{self.name}:{line}: {message}")
