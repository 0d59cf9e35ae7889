"""Hill climbing: every step starts from the fastest kernel that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.policies.moves import Moves
from search.policies.steady import SteadyPolicy, fastest
from search.types import Node, Operator


@dataclass(frozen=True)
class Greedy(SteadyPolicy):
    """Always from the best: fast at first, and stuck on the first hill."""

    def parent(self, moves: Moves, operator: Operator, parents: Sequence[Node]) -> Node:
        """The fastest."""
        return fastest(parents)
