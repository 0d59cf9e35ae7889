"""Recall: what comes up for a proposal, in which order, and what the dice withhold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from problems.catalog import bundled
from search.knowledge.asking import Narrowing, Question, question_of
from search.knowledge.embedding import NAME, HashingEmbedder, pack
from search.knowledge.holdout import item_dice, retrieval_on
from search.knowledge.ranking import FACT, KERNEL, LESSON, ranked_items, rarities
from search.knowledge.recall import QUOTAS, knowledge_for, recall
from search.proposing import Parent, ProposalRequest
from search.types import Operator, Target


@dataclass(frozen=True, slots=True)
class Kept:
    """An item on a shelf of a test."""

    id: str
    kind: str = KERNEL
    hardware: str = "nvidia-h200"
    language: str = "triton"
    op_family: str = "softmax"
    bound: str = ""
    exact: bool = False
    worth: float = 1.0
    terms: str = ""
    trigram_score: float = 0.0
    embedder: str | None = None
    embedding: bytes | None = None


@dataclass(slots=True)
class ListShelf:
    """A shelf that lets everything through, and remembers what it was asked."""

    items: Sequence[Kept] = ()
    gone: frozenset[str] = frozenset()
    asked: list[Narrowing] = field(default_factory=list)
    length: int = 20
    vectors: Mapping[str, bytes] = field(default_factory=dict)

    def narrow(self, narrowing: Narrowing) -> Sequence[Kept]:
        self.asked.append(narrowing)
        return self.items

    def holders(self, terms: Sequence[str]) -> Mapping[str, int]:
        return {term: sum(term in item.terms.split() for item in self.items) for term in terms}

    def texts(self, ids: Sequence[str]) -> Mapping[str, tuple[str, str]]:
        return {item_id: (f"title of {item_id}", "x" * self.length) for item_id in ids}

    def meanings(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        return {item_id: self.vectors[item_id] for item_id in ids if item_id in self.vectors}

    def retired(self) -> frozenset[str]:
        return self.gone


ASKED = Question("nvidia-h200", "triton", Operator.SEED, bundled()["softmax"].source, "softmax", "softmax", key="p 0")


def with_retrieval(question: Question = ASKED, on: bool = True) -> Question:
    """The question of the first candidate with retrieval, or of the first without."""
    ordinal = next(n for n in range(1, 50) if retrieval_on(question.key, n) == on)
    return replace(question, ordinal=ordinal)


def first(question: Question, *items: Kept) -> str:
    return ranked_items(question, ListShelf(items))[items[0].kind][0].id


def test_what_is_asked_of_the_database() -> None:
    shelf = ListShelf()
    recall(replace(ASKED, problem_hash="hash", op_family="other"), shelf)
    (asked,) = shelf.asked
    assert (asked.language, asked.hardware_kin, asked.op_family, asked.problem_hash) == (
        "triton",
        "hopper",
        None,
        "hash",
    )
    assert "softmax" in asked.terms and "workload" not in asked.terms


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Kept("b", op_family="softmax"), Kept("a", op_family="scan")),
        (Kept("b", hardware="nvidia-h200"), Kept("a", hardware="nvidia-h100")),
        (Kept("b", exact=True, op_family="scan"), Kept("a")),
        (Kept("b", terms="softmax dim"), Kept("a", terms="gather dim")),
        (Kept("b", trigram_score=0.8), Kept("a", trigram_score=0.1)),
        (Kept("b", worth=3.0), Kept("a", worth=1.1)),
        (Kept("b", embedder=NAME, embedding=HashingEmbedder().embed("softmax dim")), Kept("a")),
    ],
    ids=["family", "hardware", "the very problem", "words", "spelling", "worth", "vector"],
)
def test_each_part_has_its_say(better: Kept, worse: Kept) -> None:
    assert first(ASKED, better, worse) == first(ASKED, worse, better) == "b"


def test_a_vector_of_another_kind_is_not_compared() -> None:
    stranger = Kept("a", embedder="another", embedding=HashingEmbedder().embed("softmax"))
    assert "vector" not in ranked_items(ASKED, ListShelf([stranger]))[KERNEL][0].ranks


OF_THIS, NEAR, FAR = pack([1.0, 0.0]), pack([0.9, 0.1]), pack([0.1, 0.9])
KNOWN = replace(ASKED, problem_hash="hash")


@pytest.mark.parametrize("kind", [KERNEL, LESSON])
def test_what_means_the_same_comes_first_where_all_else_is_equal(kind: str) -> None:
    items = [Kept("a", kind), Kept("b", kind), Kept("c", kind)]
    shelf = ListShelf(items, vectors={"problem:hash": OF_THIS, "a": FAR, "b": NEAR, "c": pack([-1.0, 0.0])})
    found = ranked_items(KNOWN, shelf)[kind]
    assert [hit.id for hit in found] == ["b", "a", "c"]
    assert [hit.ranks.get("meaning") for hit in found] == [1, 2, None]


@pytest.mark.parametrize(
    ("question", "vectors"),
    [
        (KNOWN, {}),
        (KNOWN, {"a": FAR, "b": NEAR}),
        (KNOWN, {"problem:hash": OF_THIS}),
        (KNOWN, {"problem:another": OF_THIS, "a": FAR, "b": NEAR}),
        (KNOWN, {"problem:hash": OF_THIS, "b": pack([0.9, 0.1, 0.1])}),
        (ASKED, {"problem:": OF_THIS, "a": FAR, "b": NEAR}),
    ],
    ids=["no vectors", "none of the problem", "none of the items", "another problem", "another length", "only words"],
)
def test_without_meanings_to_compare_all_is_as_before(question: Question, vectors: Mapping[str, bytes]) -> None:
    items = [Kept("a", terms="softmax"), Kept("b", worth=2.0), Kept("lesson", LESSON)]
    without, found = (ranked_items(question, ListShelf(items, vectors=each)) for each in ({}, vectors))
    assert found == without
    assert all("meaning" not in hit.ranks for hits in found.values() for hit in hits)


def test_the_meaning_does_not_outweigh_the_very_problem() -> None:
    shelf = ListShelf([Kept("a"), Kept("b", exact=True)], vectors={"problem:hash": OF_THIS, "a": NEAR, "b": FAR})
    assert ranked_items(KNOWN, shelf)[KERNEL][0].id == "b"


def test_an_error_of_its_own_comes_before_everything() -> None:
    error = Kept("b", LESSON, op_family="", exact=True)
    others = [Kept(f"a{n}", LESSON, worth=9.0, terms="softmax dim", trigram_score=0.9) for n in range(5)]
    assert first(replace(ASKED, error="digest"), error, *others) == "b"


def test_rare_words_say_more() -> None:
    found = rarities(("rare", "common", "new"), {"rare": 1, "common": 90})
    assert found["new"] > found["rare"] > found["common"] > 0


@pytest.mark.parametrize("operator", QUOTAS)
def test_a_prompt_gets_its_quota_of_each_kind_in_order(operator: str) -> None:
    items = [Kept(f"{kind}_{n}", kind) for kind in (KERNEL, LESSON) for n in range(9)]
    found = recall(with_retrieval(replace(ASKED, operator=operator)), ListShelf(items))
    shown = [use for use in found.uses if use.shown]
    assert {kind: sum(use.kind == kind for use in shown) for kind in (LESSON, KERNEL, FACT)} == QUOTAS[operator]
    assert [use.kind for use in shown] == sorted((use.kind for use in shown), key=list(QUOTAS[operator]).index)
    assert found.knowledge == tuple(use.known for use in shown)
    assert all(known.ours == known.id.startswith("fact:") for known in found.knowledge)


def test_a_tuner_is_asked_nothing() -> None:
    assert recall(with_retrieval(replace(ASKED, operator=Operator.TUNE)), ListShelf([Kept("a")])).uses == ()


def test_without_retrieval_the_same_comes_up_and_nothing_is_shown() -> None:
    items = [Kept(f"kernel_{n}") for n in range(3)]
    off = recall(with_retrieval(on=False), ListShelf(items))
    assert not off.retrieval and off.knowledge == () and off.uses
    assert not any(use.shown for use in off.uses)


def test_what_is_left_out_makes_room_for_the_next_and_is_on_record() -> None:
    items = [Kept(f"kernel_{n}") for n in range(60)]
    for ordinal in range(1, 200):
        question = replace(ASKED, ordinal=ordinal)
        if not retrieval_on(question.key, ordinal):
            continue
        kernels = [use for use in recall(question, ListShelf(items)).uses if use.kind == KERNEL]
        assert [use.shown for use in kernels] == [False] * (len(kernels) - 1) + [True]
        out = item_dice(question.key, ordinal)
        assert all(out(use.item_id) != use.shown for use in kernels)
        if len(kernels) > 1:
            return
    pytest.fail("no proposal went without an item")


def test_what_does_not_fit_does_not_come_up() -> None:
    question = with_retrieval()
    lessons = [Kept(f"lesson_{n}", LESSON) for n in range(2)]
    assert LESSON in {use.kind for use in recall(question, ListShelf(lessons)).uses}
    assert LESSON not in {use.kind for use in recall(question, ListShelf(lessons, length=50_000)).uses}
    assert recall(question, ListShelf(lessons), characters=10).uses == ()


def test_retired_items_come_up_no_more() -> None:
    shelf = ListShelf([Kept("a"), Kept("b")], gone=frozenset({"a", "fact:softmax-row-resident"}))
    found = ranked_items(ASKED, shelf)
    assert [hit.id for hit in found[KERNEL]] == ["b"]
    assert "fact:softmax-row-resident" not in {hit.id for hit in found[FACT]}
    assert "fact:softmax-row-resident" in {hit.id for hit in ranked_items(ASKED, ListShelf())[FACT]}


def test_the_same_question_has_the_same_answer() -> None:
    items = [Kept(f"kernel_{n}", terms="softmax") for n in range(9)]
    assert recall(ASKED, ListShelf(items)) == recall(ASKED, ListShelf(items[::-1]))
    assert list(knowledge_for(["fact:roofline-first"], ListShelf())) == ["fact:roofline-first"]


def test_a_repair_asks_about_its_parents_error_and_others_do_not() -> None:
    broken = Parent("x", "build_error", "the build failed", log="k.cu:1: error: '__foo' is not declared here")
    target = Target("nvidia-h200", "cuda")
    request = ProposalRequest("softmax", "x = 1", target, Operator.REPAIR, op_family="softmax", parents=(broken,))
    asked = question_of(request, problem_hash="hash", key="key")
    assert asked.error is not None and "'__foo' is not declared" in asked.error_message
    other = question_of(replace(request, operator=Operator.REWRITE), problem_hash="hash", key="key", bound="memory")
    assert (other.error, other.error_message, other.bound) == (None, "", "memory")
