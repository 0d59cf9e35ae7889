"""What the shelf lets through, on a few hundred kernels that are made up from real vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from benchmarks.knowledge_shelves import fill, made_up_kernels
from db.knowledge import MAX_RARE_HOLDERS, NewUse, Shelf, StoredItem, _rare, store_uses, uses_of
from db.knowledge_models import KnowledgeTerm

KERNELS = list(made_up_kernels(400))
MINE = [kernel for kernel in KERNELS if (kernel.language, kernel.hardware_kin) == ("triton", "hopper")]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to the shelf."""

    language: str = "triton"
    hardware_kin: str = "hopper"
    op_family: str | None = None
    title: str = ""
    terms: tuple[str, ...] = ()
    error: str | None = None
    error_message: str = ""
    problem_hash: str = ""


@pytest.fixture
def session(database_url: str) -> Iterator[Session]:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        fill(connection, KERNELS)
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_a_shelf_lets_through_what_fits_and_nothing_else(session: Session) -> None:
    def found(asked: Asked) -> list[StoredItem]:
        items = Shelf(session).narrow(asked)
        assert {(item.language, item.kind) for item in items} <= {("triton", "kernel")}
        assert all(item.hardware == "nvidia-h200" for item in items)
        return items

    family = max((kernel.op_family for kernel in MINE), key=[kernel.op_family for kernel in MINE].count)
    of_family = found(Asked(op_family=family))
    assert {item.id for item in of_family} == {f"kernel_{k.number}" for k in MINE if k.op_family == family}

    one = MINE[-1]
    own_word = one.terms.split()[-1]
    assert [item.id for item in found(Asked(terms=(own_word, "of-nobody")))] == [f"kernel_{one.number}"]
    (item,) = found(Asked(terms=(own_word,), problem_hash=one.problem))
    assert item.exact and item.worth == one.speedup and item.embedding == one.embedding

    misspelt = one.title.replace("kernel for", "kernl fr")
    assert f"kernel_{one.number}" in {item.id for item in found(Asked(title=misspelt))}
    assert found(Asked()) == []
    assert found(Asked(terms=(own_word,), hardware_kin="ampere")) == []


def test_the_words_of_kernels_are_counted(session: Session) -> None:
    word = KERNELS[0].terms.split()[0]
    holders = sum(word in kernel.terms.split() for kernel in KERNELS)
    assert Shelf(session).holders([word, "of-nobody"]) == {word: holders}
    assert session.get_one(KnowledgeTerm, word).holders == holders


def test_what_came_up_is_stored_once(session: Session) -> None:
    use = NewUse("fact:a", "fact", 1, 0.5, True, "a \x00 title", "text", {"text": 1})
    store_uses(session, "cand_0", retrieval=True, uses=[use, replace(use, item_id="fact:b", shown=False)])
    store_uses(session, "cand_0", retrieval=True, uses=[replace(use, title="another")])
    found = uses_of(session, "cand_0")
    assert [(each.item_id, each.place, each.shown) for each in found] == [("fact:a", 1, True), ("fact:b", 2, False)]
    assert found[0].title == "a \ufffd title"
    assert session.execute(text("SELECT retrieval FROM candidates WHERE id = 'cand_0'")).scalar_one() is True


def test_the_rarest_words_narrow_until_they_are_many() -> None:
    assert _rare({"a": 5, "b": 1, "c": MAX_RARE_HOLDERS}) == ["b", "a"]
    assert _rare({"a": 10 * MAX_RARE_HOLDERS}) == ["a"]
    assert _rare({}) == []
