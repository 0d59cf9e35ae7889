"""Retrieval: terms, parts, fusion and diversity; and that the bundled problems find what is about them."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems.catalog import Outline, bundled
from search.facts import Fact, facts, item_of
from search.hardware import widening
from search.retrieval import (
    RRF_K,
    Facets,
    Index,
    Item,
    Query,
    diverse,
    fits,
    fuse,
    ranked,
    similarity,
    structured,
    terms,
    trigrams,
)

INDEX = Index(item_of(fact) for fact in facts().values())
TARGETS = [
    ("nvidia-h200", "triton"),
    ("nvidia-h200", "cuda"),
    ("nvidia-a100", "triton"),
    ("nvidia-l4", "cuda"),
    ("nvidia-b200", "triton"),
    ("amd-mi300x", "triton"),
    ("cpu", "cpp"),
]


def code_of(problem: Outline) -> str:
    """The reference without its SPEC, in which the op family stands."""
    return re.sub(r"^SPEC = \{.*?^\}", "", problem.source, flags=re.DOTALL | re.MULTILINE)


def query_of(problem: Outline, hardware: str, language: str, **changes: str | None) -> Query:
    asked = {"op_family": problem.op_family, "bound": None} | changes
    return Query(code_of(problem), problem.summary, hardware, language, **asked)  # type: ignore[arg-type]


def known_of(problem: Outline, hardware: str, language: str) -> list[Fact]:
    """The facts about its family that fit the target."""
    query = query_of(problem, hardware, language)
    fitting = (fact for fact in facts().values() if fits(item_of(fact).facets, query))
    return [fact for fact in fitting if problem.op_family in fact.op_families]


# --- the bundled problems ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hardware", "language"), TARGETS)
@pytest.mark.parametrize("name", bundled())
def test_a_problem_finds_facts_of_its_family_hardware_and_language(name: str, hardware: str, language: str) -> None:
    problem = bundled()[name]
    found = [facts()[hit.id] for hit in INDEX.search(query_of(problem, hardware, language), 5, 2)]
    assert len(found) == 5
    # Facts of other families that name the very operation come before the third of these two.
    wanted = min(2 if problem.op_family in ("scan", "movement") else 3, len(known_of(problem, hardware, language)))
    assert sum(problem.op_family in fact.op_families for fact in found) >= wanted
    for fact in found:
        assert not fact.hardware or set(fact.hardware) & set(widening(hardware)), fact.id
        assert not fact.languages or language in fact.languages, fact.id


SCARCE = {
    ("convolution", "cpp"): 2,
    ("scatter", "cuda"): 2,
    ("topk", "triton"): 1,
    ("topk", "cuda"): 1,
    ("topk", "cpp"): 0,
}
"""Families and languages of which fewer than three facts are known, and how many; of all others three or more are."""


def test_facts_are_scarce_nowhere_else() -> None:
    known = {
        (problem.op_family, language): len(known_of(problem, hardware, language))
        for problem, (hardware, language) in itertools.product(bundled().values(), TARGETS)
    }
    assert {which: count for which, count in known.items() if count < 3} == SCARCE


def test_the_words_alone_find_the_family_of_at_least_95_percent() -> None:
    met = []
    for problem, (hardware, language) in itertools.product(bundled().values(), TARGETS):
        if SCARCE.get((problem.op_family, language)) == 0:
            continue  # there is nothing to find
        found = INDEX.search(query_of(problem, hardware, language, op_family=None), 5, 2)
        met.append(any(problem.op_family in facts()[hit.id].op_families for hit in found))
    assert sum(met) / len(met) >= 0.95


@pytest.mark.parametrize("bound", ["memory", "compute", "latency", "launch"])
def test_a_bound_brings_facts_about_it_in_at_least_95_percent(bound: str) -> None:
    """Two of five are about the bound, or as many as there are for that op family on that target."""
    met = []
    for problem, (hardware, language) in itertools.product(bundled().values(), TARGETS):
        query = query_of(problem, hardware, language, bound=bound)
        fitting = [fact for fact in facts().values() if fits(item_of(fact).facets, query)]
        known = [fact for fact in fitting if problem.op_family in fact.op_families and bound in fact.bounds]
        found = [facts()[hit.id] for hit in INDEX.search(query, 5, 2)]
        met.append(sum(bound in fact.bounds for fact in found) >= min(2, len(known)))
    assert sum(met) / len(met) >= 0.95


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("error: shared memory out of resource, required 262144, hardware limit 232448", "cuda-dynamic-shared"),
        ("tl.dot with input_precision tf32 is incorrect in float32", "triton-dot-precision"),
        ("NaN dropped by tl.maximum in a ReLU", "triton-nan-semantics"),
        ("num_stages software pipelining", "triton-num-stages"),
        ("Welford variance", "norm-one-pass-variance"),
    ],
)
def test_an_error_or_a_name_finds_what_is_known_of_it(text: str, wanted: str) -> None:
    assert wanted in [hit.id for hit in INDEX.search(Query(text, hardware="nvidia-h200"), 5)]


# --- what is left out, and what is preferred --------------------------------------------------------------------------


def item(item_id: str, kind: str = "technique", title: str = "", text: str = "", **facets: tuple[str, ...]) -> Item:
    return Item(item_id, kind, title or item_id, text, Facets(**facets))


def test_other_hardware_and_languages_are_left_out_unless_asked_for() -> None:
    index = Index([item("a", hardware=("cdna",)), item("b", languages=("cuda",)), item("c")])
    query = Query(hardware="nvidia-h200", language="triton")
    assert [hit.id for hit in index.search(query)] == ["c"]
    foreign = Query(hardware="nvidia-h200", language="triton", foreign=True)
    assert {hit.id for hit in index.search(foreign)} == {"a", "b", "c"}
    assert fits(Facets(hardware=("unheard-of",)), Query(hardware="unheard-of"))
    assert fits(Facets(hardware=("cdna",)), Query())


def test_the_nearer_and_the_more_specific_come_first() -> None:
    query = Query(hardware="nvidia-b200", language="cuda", op_family="matmul", bound="compute")
    score = [
        structured(Facets(op_families=("matmul",), hardware=("sm_100",), bounds=("compute",)), query),
        structured(Facets(op_families=("matmul",), hardware=("blackwell",), bounds=("compute",)), query),
        structured(Facets(op_families=("matmul", "scan"), hardware=("blackwell",), bounds=("compute",)), query),
        structured(Facets(op_families=("matmul", "scan"), hardware=("blackwell",), bounds=("memory",)), query),
        structured(Facets(), query),
        structured(Facets(op_families=("scan",), hardware=("gpu",), bounds=("memory",)), query),
    ]
    assert score == sorted(score, reverse=True)
    assert len(set(score)) == len(score)


def test_nothing_comes_of_nothing() -> None:
    assert Index([]).search(Query("softmax")) == []
    assert INDEX.search(Query(), limit=0) == []
    assert len(INDEX.search(Query(), limit=3)) == 3


def test_an_items_name_stands_once() -> None:
    with pytest.raises(ValueError, match="'a'"):
        Index([item("a"), item("a")])


def test_the_answer_does_not_depend_on_the_order_of_items() -> None:
    items = [item_of(fact) for fact in facts().values()]
    query = query_of(bundled()["softmax"], "nvidia-h200", "triton")
    assert Index(reversed(items)).search(query, 20) == Index(items).search(query, 20)


def test_further_parts_join_the_fusion_but_bring_back_nothing_that_was_left_out() -> None:
    index = Index([item("a"), item("b"), item("c", languages=("cpp",))])
    found = index.search(Query(language="cuda"), more={"vector": {"b": 0.9, "a": 0.1, "c": 1.0, "unknown": 1.0}})
    assert [(hit.id, hit.ranks["vector"]) for hit in found] == [("b", 1), ("a", 2)]


# --- terms and trigrams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_warps", ["num", "warp"]),
        ("RMSNorm LayerNorm layernorm", ["rms", "norm", "layer", "norm", "norm"]),
        ("tl.dot(a, b) of the rows", ["tl", "dot", "row"]),
        ("HTTPServer m64n256k16 bf16", ["http", "server", "m64", "n256", "k16", "bfloat16"]),
        ("class Model(nn.Module): return torch.cumsum(x)", ["module", "scan"]),
        ("bias, loss, this, axis", ["bia", "loss", "axis"]),
        ("", []),
    ],
)
def test_words_are_normalised(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_trigrams_are_those_of_pg_trgm() -> None:
    assert trigrams("Cat") == {"  c", " ca", "cat", "at "}
    assert similarity(trigrams("word"), trigrams("two words")) == pytest.approx(4 / 11)
    assert similarity(trigrams(""), trigrams("word")) == 0.0


# --- fusion and diversity ---------------------------------------------------------------------------------------------

IDS = st.sampled_from("abcdefgh")
SCORES = st.dictionaries(IDS, st.integers(0, 5).map(float), max_size=8)
PARTS = st.dictionaries(st.sampled_from(["structured", "text", "trigram", "vector"]), SCORES.map(ranked), max_size=4)


@given(SCORES)
def test_ranks_follow_scores_and_equal_scores_share_one(scores: dict[str, float]) -> None:
    ranks = ranked(scores)
    assert ranks.keys() == scores.keys()
    for one, other in itertools.product(scores, repeat=2):
        assert (ranks[one] < ranks[other]) == (scores[one] > scores[other])
    assert not ranks or min(ranks.values()) == 1


@given(PARTS)
def test_fusion_keeps_every_item_once_with_its_parts(parts: dict[str, dict[str, int]]) -> None:
    found = fuse(parts)
    assert sorted(hit.id for hit in found) == sorted({item_id for part in parts.values() for item_id in part})
    for hit in found:
        assert hit.ranks == {name: part[hit.id] for name, part in parts.items() if hit.id in part}
    assert [(-hit.score, hit.id) for hit in found] == sorted((-hit.score, hit.id) for hit in found)


@given(PARTS)
def test_fusion_is_monotone_in_ranks(parts: dict[str, dict[str, int]]) -> None:
    """Who is nowhere behind another, in parts that have both or only itself, is not behind it in the whole."""
    found = fuse(parts)
    place = {hit.id: at for at, hit in enumerate(found)}
    absent = 10**6
    for one, other in itertools.permutations(found, 2):
        pairs = [(one.ranks.get(name, absent), other.ranks.get(name, absent)) for name in parts]
        if all(mine <= theirs for mine, theirs in pairs) and any(mine < theirs for mine, theirs in pairs):
            assert one.score > other.score
            assert place[one.id] < place[other.id]


@given(PARTS, IDS, st.sampled_from(["text", "vector"]))
def test_a_better_rank_never_hurts(parts: dict[str, dict[str, int]], item_id: str, name: str) -> None:
    better = {part: dict(ranks) for part, ranks in parts.items()}
    better.setdefault(name, {})[item_id] = 1
    before = {hit.id: at for at, hit in enumerate(fuse(parts))}
    after = {hit.id: at for at, hit in enumerate(fuse(better))}
    assert after[item_id] <= before.get(item_id, len(before))


def test_the_score_is_the_sum_of_weighted_reciprocal_ranks() -> None:
    (hit,) = fuse({"text": {"a": 3}, "structured": {"a": 1}}, {"structured": 2.0})
    assert hit.score == pytest.approx(2 / (RRF_K + 1) + 1 / (RRF_K + 3))


@given(SCORES, st.dictionaries(IDS, st.sampled_from("xyz")), st.integers(0, 6), st.none() | st.integers(1, 3))
def test_diversity_keeps_the_order_and_the_bounds(
    scores: dict[str, float], kinds: dict[str, str], limit: int, per_kind: int | None
) -> None:
    found = fuse({"text": ranked(scores)})
    chosen = diverse(found, kinds, limit, per_kind)
    assert len(chosen) <= limit
    assert [hit for hit in found if hit in chosen] == chosen
    for kind in set(kinds.values()):
        of_kind = [hit for hit in chosen if kinds.get(hit.id) == kind]
        assert per_kind is None or len(of_kind) <= per_kind
    if per_kind is None:
        assert chosen == found[:limit]
