"""Islands take turns, keep to themselves, and exchange their best when it is time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.policies.islands import GENERATIONS, Islands, emigrants, island_count, population
from search.tree import Tree
from search.types import Node, Operator, PolicyName, ProposerKind
from tests.unit.search.policies.landscapes import landscape, node
from tests.unit.search.worlds import job_view

COUNT = 4
INTERVAL = GENERATIONS * COUNT


def grown(size: int) -> list[Node]:
    """A tree whose later kernels are faster."""
    return [node(n, speedup=1.0 + n / 100) for n in range(size)]


@pytest.mark.parametrize(("candidates", "count"), [(1, 1), (6, 1), (12, 2), (20, 3), (24, 4), (1000, 4)])
def test_a_budget_feeds_so_many_islands(candidates: int, count: int) -> None:
    assert island_count(job_view(candidates)) == count


@given(st.integers(0, 5 * INTERVAL - 1))
@settings(max_examples=60, deadline=None)
def test_islands_exchange_their_best_at_every_interval_and_not_before(size: int) -> None:
    tree = Tree(grown(size))
    for island in range(COUNT):
        own = {n.id for place, n in enumerate(tree.nodes) if place % COUNT == island}
        from_elsewhere = {n.id for n in population(tree, island, COUNT)} - own
        # The best of an island is its youngest: at each migration the last that was born before it.
        neighbour = (island - 1) % COUNT
        due = {f"c{at - COUNT + neighbour}" for at in range(INTERVAL, size + 1, INTERVAL)}
        assert from_elsewhere == due


def test_migrants_are_the_best_tenth_and_at_least_one() -> None:
    tree = Tree(grown(100 * COUNT))
    assert [n.id for n in emigrants(tree, 1, COUNT, COUNT)] == ["c1"]
    assert len(emigrants(tree, 1, COUNT, 100 * COUNT)) == 10
    assert emigrants(Tree([]), 1, COUNT, INTERVAL) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_islands_grow_from_their_own_kernels(seed: int, slots: int) -> None:
    turns_of(seed, slots)


def test_every_island_grows() -> None:
    turns = sum((turns_of(seed, slots=1 + seed % 5) for seed in range(20)), Counter())
    assert len(turns) == COUNT
    assert max(turns.values()) < 1.5 * min(turns.values())


def turns_of(seed: int, slots: int) -> Counter[int]:
    """How often each island of a search grew, each time from a kernel of its own."""
    world = landscape(seed, PolicyName.ISLANDS, 60, slots=slots, failing=0.2, duplicate=0.0, provider_down=0.0)
    count = island_count(world.job)
    turns: Counter[int] = Counter()
    for _ in range(300):
        tree = Tree(world.tree)
        decision = world.step()
        if decision.stop_reason is not None:
            break
        for place, expansion in enumerate(decision.expansions, start=len(tree.nodes)):
            if expansion.operator not in (Operator.REFINE, Operator.REWRITE):
                continue
            turns[place % count] += 1
            residents = {n.id for n in population(tree, place % count, count)}
            assert expansion.parents[0] in residents or not residents
        world.something_happens()
    return turns


def test_an_island_without_kernels_starts_from_anyones() -> None:
    tree = [node(n, Operator.SEED, ProposerKind.BUILTIN if n == 0 else ProposerKind.LLM) for n in range(7)]
    lonely = [n if n.ordinal == 2 else node(n.ordinal, proposer=n.proposer, verdict="suspicious") for n in tree]
    expansion = Islands().next_expansion(job_view(24, models=("a",)), Tree(lonely))
    assert expansion is not None
    assert expansion.parents == ("c2",)
