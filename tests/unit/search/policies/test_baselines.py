"""The policies that others are compared with: each does what its name says and nothing cleverer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from search.policies.archive import Archive
from search.policies.best_of_n import BestOfN
from search.policies.greedy import Greedy
from search.policies.random_search import RandomSearch
from search.policy import Policy
from search.tree import Tree
from search.types import Expansion, Failure, Node, Operator, PolicyName, ProposerKind, State
from tests.unit.search.policies.landscapes import PLANS, landscape, node
from tests.unit.search.worlds import job_view

TREE = [
    node(0, proposer=ProposerKind.BUILTIN, speedup=1.0, tunable=True),
    node(1, speedup=1.5, plan=PLANS[0], tunable=True),
    node(2, speedup=2.0, plan=PLANS[1], tunable=True),
    node(3, speedup=1.6, plan=PLANS[2], tunable=True),
]


def choices(policy: Policy, tree: list[Node], count: int = 300) -> list[Expansion]:
    """What is decided under each of so many seeds."""
    found = [policy.next_expansion(job_view(8, models=("a",), seed=seed), Tree(tree)) for seed in range(count)]
    return [expansion for expansion in found if expansion is not None]


def test_greedy_always_starts_from_the_fastest() -> None:
    made = choices(Greedy(), TREE)
    assert {expansion.parents[0] for expansion in made} == {"c2"}
    assert {expansion.operator for expansion in made} >= {Operator.REFINE, Operator.TUNE, Operator.REWRITE}


def test_random_takes_any_operator_and_any_parent() -> None:
    made = choices(RandomSearch(), TREE)
    operators = Counter(expansion.operator for expansion in made)
    assert set(operators) == {Operator.REFINE, Operator.REWRITE, Operator.CROSSOVER, Operator.TUNE, Operator.SEED}
    assert max(operators.values()) < 2 * min(operators.values())
    parents = Counter(expansion.parents[0] for expansion in made if expansion.operator == Operator.REFINE)
    assert set(parents) == {"c0", "c1", "c2", "c3"}


def test_best_of_n_learns_nothing() -> None:
    world = landscape(4, PolicyName.BEST_OF_N, 30, failing=0.5)
    world.run()
    assert {(n.operator, n.parents) for n in world.tree} == {(Operator.SEED, ())}


def test_best_of_n_without_models_tunes_all_spaces_alike() -> None:
    closed = node(4, proposer=ProposerKind.BUILTIN, state=State.REJECTED, verdict=None, failure=Failure.EXHAUSTED)
    tree = Tree([*TREE, closed])
    for _ in range(8):
        expansion = BestOfN().next_expansion(job_view(20), tree)
        assert expansion is not None
        tree = tree.grown(expansion)
    assert Counter(n.parents[0] for n in tree.nodes[5:]) == {"c0": 2, "c1": 2, "c2": 2, "c3": 2}


def parents_of(tree: list[Node]) -> Counter[str]:
    return Counter(e.parents[0] for e in choices(Archive(), tree) if e.operator == Operator.REFINE)


def test_the_archive_prefers_the_fast_and_seldom_tried() -> None:
    fresh = parents_of(TREE)
    assert set(fresh) <= {"c1", "c2", "c3"}
    tired = [*TREE, *(node(n, Operator.REFINE, parents=("c2",), speedup=0.5) for n in range(4, 10))]
    assert parents_of(tired)["c2"] < fresh["c2"] / 2


def test_the_archive_keeps_to_its_operators_shares() -> None:
    untuned = [replace(n, tunable=False) for n in TREE]
    operators = Counter(expansion.operator for expansion in choices(Archive(), untuned, 1000))
    assert operators[Operator.REFINE] == pytest.approx(600, abs=60)
    assert operators[Operator.REWRITE] == pytest.approx(300, abs=60)
    assert operators[Operator.CROSSOVER] == pytest.approx(100, abs=40)


def test_kernels_of_one_speed_share_the_archive() -> None:
    alike = [replace(n, speedup=1.5) for n in TREE]
    assert set(parents_of(alike)) == {"c0", "c1", "c2", "c3"}
