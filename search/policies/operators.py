"""Which operator next: a bandit that learns what pays, or fixed weights.

The bandit is Thompson sampling with a budget (Xia et al., IJCAI 2015): each operator has a chance to improve the best,
what an improvement gains in log-speedup, and what a try costs; the chance is drawn from its Beta posterior, and the
operator with the highest gain for its cost is taken. Older tries count less (discounted Thompson sampling, Raj and
Kalyani, arXiv 1707.09727), since refining pays early and less and less. Everything is read from the tree each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.policy import FROM_NOTHING
from search.tree import IMPROVEMENT
from search.types import Failure, Node, Operator, State, Verdict

if TYPE_CHECKING:
    from search.policies.moves import Moves  # which itself asks `models`, made of the same parts

MIX: Mapping[Operator, float] = {
    Operator.REFINE: 3.0,
    Operator.REPAIR: 2.0,
    Operator.TUNE: 2.0,
    Operator.REWRITE: 0.7,
    Operator.CROSSOVER: 0.3,
}
"""Small steps to large ones 3 to 1, as AdaExplore (arXiv 2604.16625); repairs so that ideas with a bug are not lost."""

LARGE_STEPS = frozenset({Operator.SEED, Operator.REWRITE, Operator.CROSSOVER})

PRIORS: Mapping[Operator, tuple[float, float]] = {
    Operator.REFINE: (4.0, 8.0),
    Operator.TUNE: (3.0, 8.0),
    Operator.REPAIR: (3.0, 8.0),
    Operator.REWRITE: (1.0, 6.0),
    Operator.CROSSOVER: (1.0, 6.0),
    Operator.SEED: (1.0, 8.0),
}
"""Improvements and failures before the first try: a dozen tries outweigh them."""

PRIOR_GAIN = 0.15
"""Log-speedup of an improvement before any was seen: 16 %."""

DISCOUNT = 0.98
"""How much less a try counts for each candidate made since: after 35 of them, half."""

GPU_S_USD = 0.001
"""What a second of a device is worth: 3.6 dollars an hour, about a rented H100."""

SLOT_USD = 0.1
"""What a place in the budget of candidates is worth. Without it a free try always beats one that costs a cent."""

BROAD_BOOST = 3.0
"""By how much a stagnant search favours large steps."""


@dataclass(frozen=True, slots=True)
class Try:
    """One use of an operator: by how much it bettered the best before it, and what it cost. In flight: nothing yet."""

    operator: str
    gain: float
    cost_usd: float
    weight: float


def mixed(moves: Moves, legal: Sequence[Operator], weights: Mapping[Operator, float] = MIX) -> Operator:
    """One of these operators by fixed weights; where none of them has a weight, the first."""
    weighted = [weights.get(operator, 0.0) for operator in legal]
    return moves.dice.choices(legal, weighted)[0] if any(weighted) else legal[0]


def thompson(moves: Moves, legal: Sequence[Operator], *, broad: bool = False) -> Operator:
    """One of these operators by what they have gained for their cost so far. Broad: with a bonus for large steps."""
    tries = list(_tries(moves.tree.nodes))
    average = sum(t.cost_usd for t in tries) / len(tries) if tries else SLOT_USD

    def worth(operator: Operator) -> float:
        drawn = _draw(moves, operator, [t for t in tries if t.operator == operator], average)
        return drawn * BROAD_BOOST if broad and operator in LARGE_STEPS else drawn

    return max([(worth(operator), -rank, operator) for rank, operator in enumerate(legal)])[2]


def _draw(moves: Moves, operator: Operator, tries: Sequence[Try], average_usd: float) -> float:
    """Log-speedup for a dollar, as it may be."""
    wins, losses = PRIORS[operator]
    won = sum(t.weight for t in tries if t.gain > 0)
    lost = sum(t.weight for t in tries if t.gain == 0)
    gain = (PRIOR_GAIN + sum(t.weight * t.gain for t in tries)) / (1 + won)
    cost_usd = (average_usd + sum(t.weight * t.cost_usd for t in tries)) / (1 + won + lost)
    return moves.dice.betavariate(wins + won, losses + lost) * gain / cost_usd


def _tries(nodes: Sequence[Node]) -> Iterator[Try]:
    """What each candidate says about its operator. What is in flight counts as a try that has gained nothing."""
    best: float | None = None
    opening = True
    for place, node in enumerate(nodes):
        opening = opening and node.operator in FROM_NOTHING
        if says_nothing(node):
            continue
        gain = 0.0
        if node.ok and node.speedup:
            # The first kernel is measured against the baseline.
            gain = math.log(node.speedup / (best or 1.0)) if node.speedup > (best or 1.0) * IMPROVEMENT else 0.0
            best = max(best or 0.0, node.speedup)
        if opening:
            continue  # seeds that only had one another to beat
        yield Try(node.operator, gain, cost_of(node), DISCOUNT ** (len(nodes) - 1 - place))


def cost_of(node: Node) -> float:
    """What a candidate cost in USD: its place in the budget, its models, its time on the device."""
    return SLOT_USD + float(node.cost_usd) + GPU_S_USD * node.gpu_s


def says_nothing(node: Node) -> bool:
    """Whether it ended by no fault of its operator."""
    return (
        node.state == State.CANCELLED
        or node.verdict == Verdict.INFRA_ERROR
        or node.failure in (Failure.PROVIDER_ERROR, Failure.BUDGET)
    )
