"""The bundled embedder: feature hashing of words and their trigrams, offline and without a model.

Each word and each trigram of it adds a signed share to one of 256 places (Weinberger et al., Feature hashing for large
scale multitask learning, arXiv 0902.2206); vectors are normalised and stored as one byte a place. Words that are
spelt alike meet, which the full-text part cannot see; meaning beyond spelling needs a model
(docs/knowledge.md), whose vectors are packed alike and only compared with their own kind.
"""

from __future__ import annotations

import hashlib
import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from search.retrieval import terms

PLACES = 256
NAME = "hashing-256-1"
TRIGRAM_SHARE = 0.35
"""Of a word's own weight: three letters in common are a hint, the word itself is the thing."""


class Embedder(Protocol):
    """Turns a text into a vector. `name` changes with every change of the vectors."""

    @property
    def name(self) -> str:
        """By which vectors know their kind."""
        ...

    def embed(self, text: str) -> bytes:
        """The vector, packed (see `pack`)."""
        ...


class HashingEmbedder:
    """The bundled one. The same text gives the same bytes on every machine."""

    name = NAME

    def embed(self, text: str) -> bytes:
        """The vector of a text's normalised words."""
        vector = [0.0] * PLACES
        for word in set(terms(text)):
            for feature, weight in _features(word):
                vector[feature] += weight
        return pack(vector)


def pack(vector: Sequence[float]) -> bytes:
    """A vector, normalised to length 1, as signed bytes."""
    length = math.sqrt(sum(value * value for value in vector))
    if not length:
        return bytes(len(vector))
    scale = 127 / max(abs(value) for value in vector)
    return array("b", [round(value * scale) for value in vector]).tobytes()


def cosine(one: bytes, other: bytes) -> float:
    """The cosine of two packed vectors, from -1 to 1; 0 where they are of different lengths or one is empty."""
    left, right = array("b", one), array("b", other)
    if len(left) != len(right):
        return 0.0
    lengths = math.sqrt(_dot(left, left) * _dot(right, right))
    return _dot(left, right) / lengths if lengths else 0.0


def _dot(one: Iterable[int], other: Iterable[int]) -> int:
    return sum(map(operator.mul, one, other))


@lru_cache(maxsize=20_000)
def _features(word: str) -> tuple[tuple[int, float], ...]:
    padded = f" {word} "
    grams = {padded[at : at + 3] for at in range(len(padded) - 2)}
    shares = [(word, 1.0), *((gram, TRIGRAM_SHARE) for gram in sorted(grams))]
    return tuple(_hashed(text, weight) for text, weight in shares)


def _hashed(text: str, weight: float) -> tuple[int, float]:
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest[:3], "big") % PLACES, weight if digest[3] & 1 else -weight
