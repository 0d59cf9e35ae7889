"""The facts: every document is whole, sourced and short, no two are alike, and all that we target is covered."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from itertools import combinations
from pathlib import Path

import pytest

from problems.catalog import bundled
from search.facts import (
    BOUNDS,
    KINDS,
    LANGUAGES,
    MAX_WORDS,
    MIN_WORDS,
    OP_FAMILIES,
    BadFact,
    Fact,
    facts,
    item_of,
    knowledge_of,
    read_fact,
    relevant,
)
from search.hardware import NAMES, widening
from search.retrieval import Query, similarity, trigrams

ROOT = Path(__file__).resolve().parents[3]
FAMILIES = {"hopper", "ampere", "ada", "blackwell", "cdna", "x86"}
ALL = list(facts().values())

DOCUMENT = (
    """+++
id = "example"
title = "A title of some length"
kind = "technique"
hardware = []
languages = ["cpp"]
op_families = ["softmax"]
bounds = ["memory"]
confirmed = 2026-11-21

[[sources]]
title = "A book"
publisher = "A press"
+++

"""
    + "word " * MIN_WORDS
)


# --- what is there ----------------------------------------------------------------------------------------------------


def test_there_are_enough() -> None:
    assert len(ALL) >= 100
    assert set(facts()) == {path.stem for path in (ROOT / "search" / "facts").glob("*.md")}


def test_kinds_hardware_languages_bounds_and_op_families_are_covered() -> None:
    kinds = Counter(fact.kind for fact in ALL)
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 20
    assert set(LANGUAGES) <= {language for fact in ALL for language in fact.languages}
    assert set(BOUNDS) <= {bound for fact in ALL for bound in fact.bounds}
    assert set(OP_FAMILIES) <= {family for fact in ALL for family in fact.op_families}
    assert {problem.op_family for problem in bundled().values()} <= set(OP_FAMILIES)
    about = Counter(name for fact in ALL for name in {_family(name) for name in fact.hardware})
    assert all(about[family] >= 4 for family in FAMILIES), about


def _family(name: str) -> str:
    parents = {"sm_80": "ampere", "sm_86": "ampere", "sm_89": "ada", "sm_90": "hopper", "sm_100": "blackwell"}
    parents |= {"sm_120": "blackwell", "gfx90a": "cdna", "gfx942": "cdna", "gfx950": "cdna"}
    return parents.get(name, name)


def test_no_two_are_alike() -> None:
    for one, other in combinations(ALL, 2):
        assert similarity(trigrams(one.title), trigrams(other.title)) < 0.5, (one.title, other.title)
    for one, other in combinations(ALL, 2):
        assert len(_phrases(one) & _phrases(other)) < 3, (one.id, other.id)


_SPLIT: dict[str, frozenset[tuple[str, ...]]] = {}


def _phrases(fact: Fact) -> frozenset[tuple[str, ...]]:
    """Runs of eight words: what two texts share when one was copied from the other."""
    if fact.id not in _SPLIT:
        words = fact.text.split()
        _SPLIT[fact.id] = frozenset(tuple(words[at : at + 8]) for at in range(len(words) - 7))
    return _SPLIT[fact.id]


@pytest.mark.parametrize("fact", ALL, ids=lambda fact: fact.id)
def test_each_is_short_sourced_and_a_paragraph_wherever_it_is_put(fact: Fact) -> None:
    assert MIN_WORDS <= len(fact.text.split()) <= MAX_WORDS
    assert fact.sources
    assert fact.confirmed >= date(2026, 11, 21)
    assert "\n" not in fact.text
    assert fact.text.endswith((".", ")"))
    assert fact.text.count("`") % 2 == 0, "a span of code is not closed"
    for source in fact.sources:
        named = re.match(r"(?:measured: )?(docs/\S+)", source.title)
        if source.publisher == "Kernelwright":
            assert named is not None
            _our_own(named[1], source.section)


def _our_own(path: str, section: str | None) -> None:
    """What we name as a source of our own exists, with that heading."""
    file = ROOT / path / "README.md" if (ROOT / path).is_dir() else ROOT / path
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert section is None or any(heading.startswith(section) for heading in headings), (path, section)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_the_example_is_a_document() -> None:
    assert read_fact(DOCUMENT, "example.md").sources[0].publisher == "A press"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("+++\nid", "id", 1, "between two lines"),
        ('kind = "technique"', "kind = technique", 4, "Invalid value"),
        ('kind = "technique"', 'kind = "rumour"', 4, "hardware, language, technique"),
        ('id = "example"', 'id = "other"', 2, "the file's name, example"),
        ('id = "example"', 'id = "Two words"', 2, "lower-case"),
        ("hardware = []", 'hardware = ["voodoo"]', 5, "'voodoo'"),
        ("hardware = []", 'hardware = ["x86", "x86"]', 5, "different"),
        ('["cpp"]', '"cpp"', 6, "list"),
        ('["cpp"]', '["fortran"]', 6, "'fortran'"),
        ('["softmax"]', '["softmax", "hats"]', 7, "'hats'"),
        ('["memory"]', '["speed"]', 8, "'speed'"),
        ("2026-11-21", '"2026-11-21"', 9, "without quotes"),
        ("2026-11-21", "2026-11-21T10:00:00", 9, "no date"),
        ('bounds = ["memory"]\n', "", 13, "bounds is missing"),
        ("confirmed", 'author = "me"\nconfirmed', 9, "unknown key 'author'"),
        ('[[sources]]\ntitle = "A book"\npublisher = "A press"\n', "sources = []\n", 11, "at least one"),
        ('publisher = "A press"\n', "", 11, "title and publisher"),
        ('"A press"', '""', 11, "not empty"),
        ('"A press"', '"A press"\nurl = "example"', 11, "no URL"),
        ("word " * MIN_WORDS, "word " * (MIN_WORDS - 1), 15, "79 words"),
        ("word " * MIN_WORDS, "word " * (MAX_WORDS + 1), 15, "201 words"),
        ("word word word", "word\n# Task\nword", 17, "headings"),
        ("word word word", "word\n```\nword", 17, "fences"),
        ("word word word", "word\n\nword word", 15, "blank lines"),
    ],
)
def test_a_bad_document_is_named_with_its_line(old: str, new: str, line: int, says: str) -> None:
    with pytest.raises(BadFact) as refused:
        read_fact(DOCUMENT.replace(old, new, 1), "example.md")
    assert str(refused.value).startswith(f"search/facts/example.md:{line}: ")
    assert says in str(refused.value)


# --- how they are handed on -------------------------------------------------------------------------------------------


def test_facts_become_items_and_knowledge() -> None:
    fact = facts()["hopper-tma"]
    assert item_of(fact).facets.hardware == fact.hardware
    known = knowledge_of(fact)
    assert known.ours
    assert known.text == fact.text


def test_what_is_relevant_is_of_more_than_one_kind_and_fits() -> None:
    query = Query("softmax over rows", hardware="nvidia-h200", language="triton", op_family="softmax")
    chosen = [facts()[known.id] for known in relevant(query)]
    assert len(chosen) == 5
    assert len({fact.kind for fact in chosen}) == 3
    for fact in chosen:
        assert not fact.hardware or set(fact.hardware) & set(widening("nvidia-h200"))
        assert not fact.languages or "triton" in fact.languages


@pytest.mark.parametrize(
    ("hardware", "belongs_to"),
    [
        ("nvidia-h200", ("nvidia-h200", "sm_90", "hopper", "nvidia", "gpu")),
        ("nvidia-h100-pcie", ("nvidia-h100-pcie", "sm_90", "hopper", "nvidia", "gpu")),
        ("nvidia-a100", ("nvidia-a100", "sm_80", "ampere", "nvidia", "gpu")),
        ("nvidia-rtx-a6000", ("nvidia-rtx-a6000", "sm_86", "ampere", "nvidia", "gpu")),
        ("nvidia-rtx-6000-ada-generation", ("nvidia-rtx-6000-ada-generation", "sm_89", "ada", "nvidia", "gpu")),
        ("nvidia-l4", ("nvidia-l4", "sm_89", "ada", "nvidia", "gpu")),
        ("nvidia-b200", ("nvidia-b200", "sm_100", "blackwell", "nvidia", "gpu")),
        ("nvidia-b300", ("nvidia-b300", "sm_103", "sm_100", "blackwell", "nvidia", "gpu")),
        ("nvidia-geforce-rtx-5090", ("nvidia-geforce-rtx-5090", "sm_120", "blackwell", "nvidia", "gpu")),
        ("nvidia-v100", ("nvidia-v100", "nvidia", "gpu")),
        ("amd-instinct-mi300x", ("amd-instinct-mi300x", "gfx942", "cdna", "amd", "gpu")),
        ("cpu", ("cpu", "x86")),
        ("abacus", ("abacus",)),
    ],
)
def test_hardware_widens_to_its_family(hardware: str, belongs_to: tuple[str, ...]) -> None:
    assert widening(hardware) == belongs_to
    assert set(belongs_to[1:]) <= NAMES
