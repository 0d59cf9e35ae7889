"""Islands with MAP-Elites and migration, in the manner of OpenEvolve.

From OpenEvolve: islands that take turns, on each a grid whose cells keep their fastest kernel (MAP-Elites, Mouret and
Clune, arXiv 1504.04909), parents from the grid, from all of the island or from its best by fixed shares, and migration
of the best along a ring. Different here: the grid is bottleneck by algorithm family, not code length by diversity; its
five islands with a migration every 50 generations would never migrate within a budget of 100, so there are fewer of
them and they migrate sooner; repairs and tuning are as in all policies.

An island is not stored: a candidate is its island's whose turn it was, which its place in the tree tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from search.lineage import selection_pool
from search.policies.moves import Moves
from search.policies.steady import SteadyPolicy, fastest, fastest_of_cells
from search.tree import Tree
from search.types import JobView, Node, Operator

MAX_ISLANDS = 4
LEAST_SHARE = 6
"""Candidates of the budget for each island: with fewer there are fewer islands."""

GENERATIONS = 4
"""Turns of each island between two migrations."""

MIGRANTS = 0.1
"""Share of an island's kernels that its neighbour gets, at least one."""

FROM_ELITES, FROM_ALL, FROM_BEST = 0.7, 0.2, 0.1


@dataclass(frozen=True)
class Islands(SteadyPolicy):
    """Small populations that mostly keep to themselves."""

    mix: ClassVar[Mapping[Operator, float]] = {
        Operator.REFINE: 3.0,
        Operator.REWRITE: 1.0,
        Operator.REPAIR: 2.0,
        Operator.TUNE: 2.0,
    }
    """OpenEvolve has no crossover of its own; other kernels are shown to the model as inspirations."""

    def parent(self, moves: Moves, operator: Operator, parents: Sequence[Node]) -> Node:
        """One of the island whose turn it is; an island that has none starts from anyone's."""
        count = island_count(moves.job)
        residents = population(moves.tree, len(moves.tree.nodes) % count, count)
        own = [node for node in residents if moves.takes(node, operator)] or list(parents)
        (source,) = moves.dice.choices(("elites", "all", "best"), (FROM_ELITES, FROM_ALL, FROM_BEST))
        if source == "best":
            return fastest(own)
        return moves.dice.choice(fastest_of_cells(moves, own) if source == "elites" else own)


def island_count(job: JobView) -> int:
    """How many islands a job's budget feeds."""
    return max(1, min(MAX_ISLANDS, job.budget.candidates // LEAST_SHARE))


def population(tree: Tree, island: int, count: int) -> list[Node]:
    """The kernels of an island: its own, and the best that its neighbour on the ring had at each migration so far."""
    residents = {node.id: node for node in _born_on(tree, island, count)}
    for at in range(GENERATIONS * count, len(tree.nodes) + 1, GENERATIONS * count):
        residents |= {node.id: node for node in emigrants(tree, (island - 1) % count, count, at)}
    return selection_pool(Tree(residents.values()))


def emigrants(tree: Tree, island: int, count: int, at: int) -> list[Node]:
    """The fastest of the kernels that were born on an island before the tree had that many nodes."""
    born = selection_pool(Tree(_born_on(tree, island, count, before=at)))
    ranked = sorted(born, key=lambda node: (-(node.speedup or 0.0), node.ordinal))
    return ranked[: max(1, int(len(ranked) * MIGRANTS))]


def _born_on(tree: Tree, island: int, count: int, before: int | None = None) -> list[Node]:
    return [node for place, node in enumerate(tree.nodes[:before]) if place % count == island]
