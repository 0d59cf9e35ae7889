"""Random search: any operator that can be applied, to any kernel that takes it. What every other policy has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.policies.moves import Moves
from search.policies.steady import SteadyPolicy
from search.types import Node, Operator


@dataclass(frozen=True)
class RandomSearch(SteadyPolicy):
    """All operators alike, all parents alike."""

    def operator(self, moves: Moves, legal: Sequence[Operator]) -> Operator:
        """Any."""
        return moves.dice.choice(legal)

    def parent(self, moves: Moves, operator: Operator, parents: Sequence[Node]) -> Node:
        """Any."""
        return moves.dice.choice(parents)

    def partner(self, moves: Moves, partners: Sequence[Node]) -> Node:
        """Any."""
        return moves.dice.choice(partners)
