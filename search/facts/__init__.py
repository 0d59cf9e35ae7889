"""Facts about hardware, languages and techniques, written by us with their sources: one short document a file.

    facts()["hopper-tma"].text
    relevant(Query(source, hardware="nvidia-h200", language="cuda", op_family="matmul"))   # ready for a prompt

A document is TOML between two lines of `+++`, then one paragraph of 80 to 200 words:

    +++
    id = "hopper-tma"                        the file's name
    title = "TMA: one thread copies a whole tile"
    kind = "hardware"                        hardware, language or technique
    hardware = ["hopper", "blackwell"]       names of search.hardware; empty: any, as in the next three
    languages = ["cuda", "triton"]
    op_families = ["matmul", "attention"]
    bounds = ["memory", "latency"]
    confirmed = 2026-11-21                   when it was last compared with its sources
    [[sources]]                              at least one; section and url where there are any
    title = "Parallel Thread Execution ISA"
    publisher = "NVIDIA"
    +++

To add one, write the file; tests/unit/search/test_facts.py says what is missing. A figure of which nobody is sure is
left out: kernels are written by it. Standard library only.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from types import MappingProxyType

from search.facts._reading import (
    BOUNDS,
    KINDS,
    LANGUAGES,
    MAX_WORDS,
    MIN_WORDS,
    OP_FAMILIES,
    BadFact,
    Fact,
    Source,
    read_fact,
)
from search.proposing import Knowledge
from search.retrieval import Facets, Index, Item, Query

__all__ = [
    "BOUNDS",
    "KINDS",
    "LANGUAGES",
    "MAX_WORDS",
    "MIN_WORDS",
    "OP_FAMILIES",
    "BadFact",
    "Fact",
    "Source",
    "fact_index",
    "facts",
    "item_of",
    "knowledge_of",
    "read_fact",
    "relevant",
]


@functools.cache
def facts() -> Mapping[str, Fact]:
    """All facts by id, in alphabetical order. Raises BadFact, which names the file and the line."""
    files = sorted(importlib.resources.files(__name__).iterdir(), key=lambda file: file.name)
    documents = (file for file in files if file.name.endswith(".md"))
    read = (read_fact(file.read_text(encoding="utf-8"), file.name) for file in documents)
    return MappingProxyType({fact.id: fact for fact in read})


def relevant(query: Query, limit: int = 5, per_kind: int | None = 2) -> tuple[Knowledge, ...]:
    """The facts that most deserve a place in a prompt for the task, best first, of more than one kind."""
    return tuple(knowledge_of(facts()[hit.id]) for hit in fact_index().search(query, limit, per_kind))


def item_of(fact: Fact) -> Item:
    """The fact as something that can be found."""
    facets = Facets(fact.hardware, fact.languages, fact.op_families, fact.bounds)
    return Item(fact.id, fact.kind, fact.title, f"{fact.text} {' '.join(fact.op_families)}", facets)


def knowledge_of(fact: Fact) -> Knowledge:
    """The fact as a prompt takes it: our own text, hence outside of fences."""
    return Knowledge(id=fact.id, title=fact.title, text=fact.text, ours=True)


@functools.cache
def fact_index() -> Index:
    """All facts, made ready to be searched."""
    return Index(item_of(fact) for fact in facts().values())
