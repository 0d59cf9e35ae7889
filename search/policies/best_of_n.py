"""Best of N independent tries: no candidate learns from another (the baseline of KernelBench and of METR's study).

Models are asked for seeds and nothing else. Without models the built-in menu is tried from end to end; what is left of
the budget goes in equal parts to the spaces of tunables, however they do.
"""

from __future__ import annotations

from dataclasses import dataclass

from search.policies.levers import ALL, Levers
from search.policies.moves import Moves
from search.policy import builtin_seed, by_model, tuning, wants_builtin_seed
from search.tree import Tree
from search.types import Expansion, JobView, Operator


@dataclass(frozen=True)
class BestOfN:
    """Seeds only, as long as there are any."""

    levers: Levers = ALL

    def next_expansion(self, job: JobView, tree: Tree) -> Expansion | None:
        """The next independent try."""
        moves = Moves(job, tree, self.levers)
        if moves.waiting:
            return None
        if moves.asking:
            return builtin_seed() if wants_builtin_seed(job, tree) else by_model(Operator.SEED, (), job, tree)
        return builtin_seed() if moves.menu_open else _evenly(moves)


def _evenly(moves: Moves) -> Expansion | None:
    """One more configuration for the space that has had the fewest."""
    spaces = sorted(moves.spaces.values(), key=lambda node: (len(moves.visited(node)), node.ordinal))
    return tuning(spaces[0]) if spaces else None
