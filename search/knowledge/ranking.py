"""Ranks what a shelf lets through: parts, their fusion, kind by kind.

Scores of different kinds do not compare, so kernels, lessons and facts each have a ranking of their own. Parts of
kernels and lessons: structured facets, words (rare ones count more), spelling, worth, vectors, and the meaning
where a model has embedded both the problem and the item; facts have those of
`search.retrieval`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from search.facts import fact_index, facts
from search.hardware import kin, widening
from search.knowledge.asking import PROBLEM_PREFIX, Question, Shelf, Stored, narrowing_of, query_of
from search.knowledge.embedding import HashingEmbedder, cosine
from search.knowledge.texts import query_terms
from search.retrieval import Facets, Found, Query, fuse, ranked, structured, weights_for

KERNEL, LESSON, FACT = "kernel", "lesson", "fact"

FACT_PREFIX: Final = "fact:"
"""Of a fact's id among items; those of kernels and lessons have prefixes of their own."""

VECTOR_WEIGHT = 0.5
"""The bundled embedder sees spelling, as the trigram part does: together they count as much as the words."""

MEANING_WEIGHT = 1.0
"""As much as the words, and less than a known op family: a model sees two names for one operation, which words and
spelling cannot, but its vectors of any two pieces of GPU code are near each other. A choice, not yet a measurement."""

MAX_VECTORS = 40
"""Vectors compared for one question, of what the other parts put first: 50 us each, 0.3 ms with 1,536 places."""


def ranked_items(question: Question, shelf: Shelf) -> dict[str, list[Found]]:
    """All that fits the question, by kind, best first; retired items are left out. Facts have their items' ids."""
    retired = shelf.retired()
    narrowing = narrowing_of(question)
    stored = [item for item in shelf.narrow(narrowing) if item.id not in retired]
    rarity = rarities(narrowing.terms, shelf.holders(narrowing.terms))
    hits = fact_index().search(query_of(question), limit=len(facts()), per_kind=None)
    named = [Found(f"{FACT_PREFIX}{hit.id}", hit.score, hit.ranks) for hit in hits]
    return {
        KERNEL: _ranked_stored(question, [item for item in stored if item.kind == KERNEL], rarity, shelf),
        LESSON: _ranked_stored(question, [item for item in stored if item.kind == LESSON], rarity, shelf),
        FACT: [hit for hit in named if hit.id not in retired],
    }


def rarities(terms: Sequence[str], holders: Mapping[str, int]) -> dict[str, float]:
    """How much each word of a question says: the inverse document frequency of BM25, over kernels."""
    most = max(holders.values(), default=0)
    counts = {term: holders.get(term, 0) for term in terms}
    return {term: math.log(1 + (most - count + 0.5) / (count + 0.5)) for term, count in counts.items()}


def _ranked_stored(
    question: Question, items: Sequence[Stored], rarity: Mapping[str, float], shelf: Shelf
) -> list[Found]:
    query = query_of(question)
    by_id = {item.id: item for item in items}
    words = {item.id: _words_score(item.terms.split(), rarity) for item in items}
    parts = {
        "structured": ranked({item.id: _structured(item, query) for item in items}),
        "text": ranked({item_id: score for item_id, score in words.items() if score > 0}),
        "trigram": ranked({item.id: item.trigram_score for item in items if item.trigram_score > 0}),
        # Where several are alike in all that is asked for, the one that achieved more comes first.
        "worth": ranked({item.id: item.worth for item in items}),
    }
    weights = weights_for(query) | {"worth": VECTOR_WEIGHT, "vector": VECTOR_WEIGHT, "meaning": MEANING_WEIGHT}
    first = [by_id[found.id] for found in fuse(parts, weights)[:MAX_VECTORS]]
    # The very problem, or the very error: beside that nothing else counts.
    parts["exact"] = {item.id: 1 for item in items if item.exact}
    parts["vector"] = ranked(_vector_scores(question, first))
    parts["meaning"] = ranked(_meaning_scores(question, first, shelf))
    return sorted(fuse(parts, weights), key=lambda found: "exact" not in found.ranks)


def _words_score(words: Sequence[str], rarity: Mapping[str, float]) -> float:
    """What the words in common say, the less the more others there are beside them."""
    return sum(rarity.get(word, 0.0) for word in words) / math.sqrt(len(words)) if words else 0.0


def _structured(item: Stored, query: Query) -> float:
    names = tuple(name for name in widening(item.hardware) if name != kin(item.hardware)) or (item.hardware,)
    facets = Facets(
        (*names, kin(item.hardware)),
        (item.language,),
        (item.op_family,) if item.op_family else (),
        (item.bound,) if item.bound else (),
    )
    return structured(facets, query)


def _vector_scores(question: Question, items: Sequence[Stored]) -> dict[str, float]:
    embedder = HashingEmbedder()
    vector = embedder.embed(" ".join(query_terms(question.title, question.text)))
    near = {
        item.id: cosine(vector, item.embedding)
        for item in items
        if item.embedding is not None and item.embedder == embedder.name
    }
    return {item_id: score for item_id, score in near.items() if score > 0}


def _meaning_scores(question: Question, items: Sequence[Stored], shelf: Shelf) -> dict[str, float]:
    """How near the items' texts are to the problem's. Nothing while the problem has no vector: nobody waits for one."""
    if not question.problem_hash or not items:
        return {}
    problem = f"{PROBLEM_PREFIX}{question.problem_hash}"
    vectors = shelf.meanings([problem, *(item.id for item in items)])
    if problem not in vectors:
        return {}
    near = {item.id: cosine(vectors[problem], vectors[item.id]) for item in items if item.id in vectors}
    return {item_id: score for item_id, score in near.items() if score > 0}
