"""An archive of the best kernels with weighted parents, in the manner of ShinkaEvolve (arXiv 2509.19349).

From ShinkaEvolve: the archive's size; a parent's weight, a sigmoid of how far it is above the archive's median (in
median absolute deviations) over one more than its children; and the shares of edits, rewrites and crossovers. Not from
it: repairs and tuning, which all policies have here, so that what is compared is the choice of parents. Its language
model as a judge of novelty and its two islands are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from search.policies.moves import Moves
from search.policies.steady import SteadyPolicy
from search.policy import log_speedup, parent_weights
from search.types import Node, Operator

ARCHIVE_SIZE = 40

SHARPNESS = 10.0
"""ShinkaEvolve's lambda: one deviation above the median is almost a certainty."""

LEAST_DEVIATION = 0.01
"""In log-speedup. Kernels that differ by less than the noise are not told apart."""


@dataclass(frozen=True)
class Archive(SteadyPolicy):
    """Fast parents with few children, by the dice."""

    mix: ClassVar[Mapping[Operator, float]] = {
        Operator.REFINE: 0.6,
        Operator.REWRITE: 0.3,
        Operator.CROSSOVER: 0.1,
        Operator.REPAIR: 0.5,
        Operator.TUNE: 0.5,
    }

    def parent(self, moves: Moves, operator: Operator, parents: Sequence[Node]) -> Node:
        """One of the archive, by its weight."""
        ranked = sorted(parents, key=lambda node: (-(node.speedup or 0.0), node.ordinal))
        archive = ranked[:ARCHIVE_SIZE]
        fitness = [log_speedup(node) for node in archive]
        middle = median(fitness)
        deviation = max(LEAST_DEVIATION, median(abs(value - middle) for value in fitness))
        children = [len(moves.visited(node)) for node in archive]
        weights = parent_weights(fitness, children, SHARPNESS / deviation)
        return moves.dice.choices(archive, weights)[0] if any(weights) else archive[0]
