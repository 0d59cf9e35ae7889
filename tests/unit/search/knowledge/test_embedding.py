"""The bundled embedder."""

from __future__ import annotations

import pytest

from search.knowledge.embedding import PLACES, HashingEmbedder, cosine, pack

EMBEDDER = HashingEmbedder()


def near(one: str, other: str) -> float:
    return cosine(EMBEDDER.embed(one), EMBEDDER.embed(other))


def test_alike_is_near_and_unlike_is_not() -> None:
    assert near("softmax over rows", "softmax over rows") == pytest.approx(1.0)
    assert near("softmax rows", "log_softmax of each row") > near("softmax rows", "embedding gradient") + 0.2
    assert near("vectorised", "vectorize") > 0.3, "words that are spelt alike meet"


def test_it_is_the_same_on_every_machine() -> None:
    assert EMBEDDER.embed("softmax").hex()[:32] == EMBEDDER.embed("Softmax ").hex()[:32]
    assert len(EMBEDDER.embed("softmax")) == PLACES
    assert cosine(EMBEDDER.embed(""), EMBEDDER.embed("softmax")) == 0.0
    assert cosine(pack([1.0, 2.0]), pack([1.0, 2.0, 3.0])) == 0.0


def test_packing_keeps_directions() -> None:
    assert cosine(pack([3.0, 4.0]), pack([6.0, 8.0])) == pytest.approx(1.0, abs=1e-3)
    assert cosine(pack([1.0, 0.0]), pack([-1.0, 0.0])) == pytest.approx(-1.0)
