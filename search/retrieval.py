"""Hybrid retrieval, pure: what is worth knowing for a task, out of any items with text and facets.

    index = Index(items)                      # facts, kernels, lessons: whatever has become an `Item`
    found = index.search(Query(text, hardware="nvidia-h200", language="triton", op_family="softmax"), limit=5)
    found[0].ranks                            # {"structured": 1, "text": 3, "trigram": 7}: why it was found

Three parts rank the items: *structured* (op family, hardware, language, bound), *text* (BM25 over normalised terms) and
*trigram* (spelling of titles, as Postgres' pg_trgm counts it). `fuse` joins the ranks by reciprocal rank; other parts,
such as vectors, join by `more`. Items that are about other hardware or another language are left out beforehand.
The same items and query give the same answer, in the same order.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from search.hardware import widening

RRF_K = 20
"""Of reciprocal rank fusion: the larger, the less the first ranks stand out. The customary 60 was found on lists of a
thousand; among a hundred facts it lets an agreement of middling ranks beat the best of the structured part."""

TRIGRAM_WEIGHT = 0.5
STRUCTURED_WEIGHT = 0.5
STRUCTURED_WEIGHT_PER_FACET = 1.5
"""Weights in the fusion; every other part has 1. What an item is about counts for more than its words where the query
names an op family or a bound; with hardware and language alone, words say more."""

BM25_K1 = 1.2
BM25_B = 0.75


@dataclass(frozen=True, slots=True)
class Facets:
    """What an item is about. An empty facet says that it holds for all."""

    hardware: tuple[str, ...] = ()
    """Hardware ids, or anything wider that `search.hardware` knows."""
    languages: tuple[str, ...] = ()
    op_families: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """Something that can be found. `kind` is what diversity counts."""

    id: str
    kind: str
    title: str
    text: str
    facets: Facets = field(default_factory=Facets)


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for: a task. Facets that are None do not matter."""

    text: str = ""
    """Anything in words or code: the reference, a diagnosis, an error."""
    title: str = ""
    """A name or one line, compared with titles by spelling; without it the text is."""
    hardware: str | None = None
    language: str | None = None
    op_family: str | None = None
    bound: str | None = None
    foreign: bool = False
    """Take items of other hardware and languages too, as a port needs them."""


@dataclass(frozen=True, slots=True)
class Found:
    """An item that was found: its fused score, and its rank in each part that ranked it."""

    id: str
    score: float
    ranks: Mapping[str, int]


class Index:
    """Items, made ready to be searched. Some thousands take milliseconds; for more, let a database narrow."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.items: dict[str, Item] = {}
        for item in sorted(items, key=lambda item: item.id):
            if item.id in self.items:
                raise ValueError(f"two items are called {item.id!r}")
            self.items[item.id] = item
        self._counts = {item.id: Counter(terms(f"{item.title} {item.text}")) for item in self.items.values()}
        self._lengths = {item_id: count.total() for item_id, count in self._counts.items()}
        self._mean = sum(self._lengths.values()) / len(self._lengths) if self._lengths else 0.0
        self._holders = Counter(term for count in self._counts.values() for term in count)
        self._grams = {item.id: trigrams(item.title) for item in self.items.values()}

    def search(
        self,
        query: Query,
        limit: int = 5,
        per_kind: int | None = None,
        more: Mapping[str, Mapping[str, float]] | None = None,
    ) -> list[Found]:
        """The best items, best first, at most `per_kind` of one kind. `more` are scores of further parts, by name."""
        parts = self.scores(query)
        fitting = parts["structured"].keys()
        for name, scores in (more or {}).items():
            parts[name] = {item_id: score for item_id, score in scores.items() if item_id in fitting}
        found = fuse({name: ranked(scores) for name, scores in parts.items()}, weights_for(query))
        return diverse(found, {item.id: item.kind for item in self.items.values()}, limit, per_kind)

    def scores(self, query: Query) -> dict[str, dict[str, float]]:
        """Each part's score for every item that it has something to say about."""
        fitting = [item for item in self.items.values() if query.foreign or fits(item.facets, query)]
        words = sorted(set(terms(f"{query.title} {query.text}")))
        grams = trigrams(query.title or query.text)
        return {
            "structured": {item.id: structured(item.facets, query) for item in fitting},
            "text": _positive({item.id: self._bm25(item.id, words) for item in fitting}),
            "trigram": _positive({item.id: similarity(grams, self._grams[item.id]) for item in fitting}),
        }

    def _bm25(self, item_id: str, words: Sequence[str]) -> float:
        counts = self._counts[item_id]
        damping = BM25_K1 * (1 - BM25_B + BM25_B * self._lengths[item_id] / self._mean) if self._mean else 0.0
        score = 0.0
        for word in words:
            if count := counts.get(word, 0):
                holders = self._holders[word]
                rarity = math.log(1 + (len(self.items) - holders + 0.5) / (holders + 0.5))
                score += rarity * count * (BM25_K1 + 1) / (count + damping)
        return score


# --- the structured part ----------------------------------------------------------------------------------------------

OP_FAMILY, HARDWARE, BOUND, LANGUAGE = 4.0, 2.0, 4.0, 1.0
"""What a facet that fits is worth. The op family decides which tricks exist, the bound which of them can help."""

UNSAID = 0.2
"""The share that an item gets which holds for all: behind one that names the case, before one that names others."""

WIDER = 0.15
"""What a name of the hardware loses for each step that it is wider than the id."""


def fits(facets: Facets, query: Query) -> bool:
    """Whether the item may be of use on that hardware and in that language."""
    if query.language and facets.languages and query.language not in facets.languages:
        return False
    return not (query.hardware and facets.hardware) or not set(facets.hardware).isdisjoint(widening(query.hardware))


def structured(facets: Facets, query: Query) -> float:
    """How well an item's facets meet the query's."""
    return (
        OP_FAMILY * _share(facets.op_families, query.op_family)
        + HARDWARE * _hardware_share(facets.hardware, query.hardware)
        + BOUND * _share(facets.bounds, query.bound)
        + LANGUAGE * _share(facets.languages, query.language)
    )


def _share(named: Sequence[str], wanted: str | None) -> float:
    if wanted is None:
        return 0.0
    if not named:
        return UNSAID
    # Among items that name the case, those that name few others are the more to the point.
    return 0.5 + 0.5 / len(named) if wanted in named else 0.0


def _hardware_share(named: Sequence[str], wanted: str | None) -> float:
    if wanted is None:
        return 0.0
    if not named:
        return UNSAID
    steps = [step for step, name in enumerate(widening(wanted)) if name in named]
    return max(UNSAID, 1.0 - WIDER * steps[0]) if steps else 0.0


# --- terms and trigrams -----------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+[a-z]*")

_STOP_WORDS = """
a an and any are as at be by for from has have if in into is it its may more most no not of on or so such than that the
their then there they this to two use used was what when where which with
import torch self return def class nn model forward init super none int float
"""
_STOP = frozenset(_STOP_WORDS.split())
"""Words that say nothing: English ones, and those of every reference."""

_SAME = {
    "normalisation": "norm",
    "normalization": "norm",
    "normalize": "norm",
    "layernorm": "norm",
    "rmsnorm": "norm",
    "gemm": "matmul",
    "linear": "matmul",
    "mm": "matmul",
    "cumsum": "scan",
    "cumulative": "scan",
    "prefix": "scan",
    "crossentropy": "entropy",
    "elementwise": "pointwise",
    "grad": "gradient",
    "backward": "gradient",
    "sdpa": "attention",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
"""Other names of the same thing: spellings, and what torch calls it."""


def terms(text: str) -> list[str]:
    """The normalised words of a text: identifiers split at underscores and camel case, lower case, without plurals."""
    found = []
    for word in _WORD.findall(text):
        term = _singular(word.lower())
        term = _SAME.get(term, term)
        if term not in _STOP and (len(term) > 1 or term.isdigit()):
            found.append(term)
    return found


def _singular(word: str) -> str:
    plural = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
    return word[:-1] if plural else word


def trigrams(text: str) -> frozenset[str]:
    """The trigrams of the words of a text, each word with two blanks before it and one behind, as pg_trgm has them."""
    grams: set[str] = set()
    for word in re.findall(r"[^\W_]+", text.lower()):
        padded = f"  {word} "
        grams.update(padded[at : at + 3] for at in range(len(padded) - 2))
    return frozenset(grams)


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """The share of trigrams that two texts have in common, from 0 to 1."""
    return len(one & other) / len(one | other) if one and other else 0.0


# --- ranks and their fusion -------------------------------------------------------------------------------------------


def ranked(scores: Mapping[str, float]) -> dict[str, int]:
    """The rank of each item, from 1. Equal scores share a rank, so that the order of ids decides nothing."""
    places: dict[float, int] = {}
    for place, score in enumerate(sorted(scores.values(), reverse=True), start=1):
        places.setdefault(score, place)
    return {item_id: places[score] for item_id, score in scores.items()}


def weights_for(query: Query) -> dict[str, float]:
    """The weights of the parts for a query, by how much it says."""
    said = (query.op_family is not None) + (query.bound is not None)
    return {"structured": STRUCTURED_WEIGHT + STRUCTURED_WEIGHT_PER_FACET * said, "trigram": TRIGRAM_WEIGHT}


def fuse(
    parts: Mapping[str, Mapping[str, int]], weights: Mapping[str, float] = MappingProxyType({}), k: int = RRF_K
) -> list[Found]:
    """Reciprocal rank fusion: every part adds weight (1 where none is given) / (k + rank). Ties go by id."""
    ranks: dict[str, dict[str, int]] = {}
    for name in sorted(parts):
        for item_id, rank in parts[name].items():
            ranks.setdefault(item_id, {})[name] = rank
    found = [
        Found(item_id, sum(weights.get(name, 1.0) / (k + rank) for name, rank in own.items()), own)
        for item_id, own in ranks.items()
    ]
    return sorted(found, key=lambda hit: (-hit.score, hit.id))


def diverse(found: Sequence[Found], kinds: Mapping[str, str], limit: int, per_kind: int | None = None) -> list[Found]:
    """The first `limit`, in order, leaving out what would be more than `per_kind` of one kind."""
    taken: Counter[str] = Counter()
    chosen: list[Found] = []
    for hit in found:
        kind = kinds.get(hit.id, "")
        if len(chosen) < limit and (per_kind is None or taken[kind] < per_kind):
            taken[kind] += 1
            chosen.append(hit)
    return chosen


def _positive(scores: Mapping[str, float]) -> dict[str, float]:
    return {item_id: score for item_id, score in scores.items() if score > 0}
