"""What all policies but best-of-N have in common: seeds first, then one step at a time from the kernels that there are.

Steady state: a policy sees what is in flight as nodes that were visited and have gained nothing yet, so that the next
slot is spent elsewhere, and nothing waits for a generation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from search.policies.levers import ALL, Levers
from search.policies.moves import Moves
from search.policies.operators import MIX, mixed
from search.policy import builtin_seed, builtin_share, model_seeds, wanted_seeds, wants_builtin_seed
from search.tree import Tree
from search.types import Expansion, JobView, Node, Operator


@dataclass(frozen=True)
class SteadyPolicy(ABC):
    """Seeds, then steps. What differs is which operator is taken and, above all, which parent."""

    mix: ClassVar[Mapping[Operator, float]] = MIX
    levers: Levers = ALL

    def next_expansion(self, job: JobView, tree: Tree) -> Expansion | None:
        """The one thing to start now, or None."""
        moves = Moves(job, tree, self.levers)
        if moves.waiting:
            return None
        return opening(moves) or self.next_step(moves)

    def next_step(self, moves: Moves) -> Expansion | None:
        """A step from a kernel; a new seed where the operator asks for one; None where there is nothing to do."""
        if not moves.legal:
            return None
        operator = self.operator(moves, moves.legal)
        if operator == Operator.SEED:
            return moves.seed()
        return self.step(moves, operator, self._parent(moves, operator))

    def step(self, moves: Moves, operator: Operator, parent: Node) -> Expansion:
        """The operator applied to the parent, with a partner where it takes two."""
        crossing = operator == Operator.CROSSOVER
        return moves.step(operator, parent, self.partner(moves, moves.partners(parent)) if crossing else None)

    def _parent(self, moves: Moves, operator: Operator) -> Node:
        parents = moves.parents(operator)
        # The lineage with the fewest tries: what is worth repairing is no question of speed.
        return parents[0] if operator == Operator.REPAIR else self.parent(moves, operator, parents)

    def operator(self, moves: Moves, legal: Sequence[Operator]) -> Operator:
        """One of the legal operators."""
        return mixed(moves, legal, self.mix)

    @abstractmethod
    def parent(self, moves: Moves, operator: Operator, parents: Sequence[Node]) -> Node:
        """One of the kernels that take the operator."""

    def partner(self, moves: Moves, partners: Sequence[Node]) -> Node:
        """The other parent of a crossover: the fastest of some other cell."""
        return moves.dice.choice(fastest_of_cells(moves, partners))


def opening(moves: Moves) -> Expansion | None:
    """The next of the seeds that come before any step, or None when they are made.

    Kernels from other targets, where there are any, come before the models' or the menu's. With models: one built-in
    seed to beat, then a few by the models. Without: the built-in menu, up to half of the budget.
    """
    job, tree = moves.job, moves.tree
    if not moves.asking:
        if moves.port is not None:
            return moves.port
        made = sum(not seed.free for seed in moves.builtin_seeds)
        return builtin_seed() if moves.menu_open and made < builtin_share(job) else None
    if wants_builtin_seed(job, tree):
        return builtin_seed()
    if moves.port is not None:
        return moves.port
    return moves.seed() if model_seeds(tree) < wanted_seeds(job) else None


def fastest(nodes: Sequence[Node]) -> Node:
    """The fastest; the oldest of equals."""
    return max(nodes, key=lambda node: (node.speedup or 0.0, -node.ordinal))


def fastest_of_cells(moves: Moves, nodes: Sequence[Node]) -> list[Node]:
    """The fastest of each cell, in the order of the cells' first kernels: the elites of MAP-Elites (Mouret and Clune,
    arXiv 1504.04909)."""
    cells: dict[object, list[Node]] = {}
    for node in nodes:
        cells.setdefault(moves.cell(node), []).append(node)
    return [fastest(members) for members in cells.values()]
