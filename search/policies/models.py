"""Which model next: half of the proposals by turns, half to the model that has given most for its cost.

Thompson sampling with a budget as for operators (see `operators`), but a model is judged by each candidate on its own:
accepted or not, and how much faster than the kernel that it was made from. That is denser than the rare improvements of
the best, which a job of some dozens of candidates has too few of to tell two models apart. Half by turns, since what a
second model adds is also another kind of idea: bandits over models are a slight gain where they were measured
(ShinkaEvolve, arXiv 2509.19349).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from search.policies.operators import DISCOUNT, PRIOR_GAIN, cost_of, says_nothing
from search.policy import healthy_models
from search.tree import Tree
from search.types import JobView, Node, ProposerKind

SHARE = 0.5
"""Of the proposals, those that the bandit gives away: the weight that it has less than the one over operators."""

PRIOR = (2.0, 2.0)
"""Accepted and not, before the first try: half of what models write is wrong, as good a guess as any."""


@dataclass(frozen=True, slots=True)
class _Try:
    """One candidate of a model: what it gained on its parent in log-speedup, and what it cost. In flight: nothing."""

    accepted: bool
    gain: float
    cost_usd: float
    weight: float


def pick_model(job: JobView, tree: Tree) -> str | None:
    """A model by what it has given; None where it is somebody's turn. The same job and tree give the same answer."""
    models = healthy_models(job, tree)
    # Dice of their own: with one model, or without this lever, every other decision stays as it was.
    dice = random.Random(f"{job.seed}-{len(tree.nodes)}-model")
    if len(models) < 2 or dice.random() >= SHARE:
        return None
    tries = {model: _tries(model, tree) for model in models}
    costs = [each.cost_usd for model in models for each in tries[model]]
    average_usd = sum(costs) / len(costs) if costs else 1.0
    return max(models, key=lambda model: _draw(dice, tries[model], average_usd))


def _draw(dice: random.Random, tries: Sequence[_Try], average_usd: float) -> float:
    """Log-speedup for a dollar, as it may be."""
    won = sum(each.weight for each in tries if each.accepted)
    lost = sum(each.weight for each in tries if not each.accepted)
    gain = (PRIOR_GAIN + sum(each.weight * each.gain for each in tries)) / (1 + won)
    cost_usd = (average_usd + sum(each.weight * each.cost_usd for each in tries)) / (1 + won + lost)
    return dice.betavariate(PRIOR[0] + won, PRIOR[1] + lost) * gain / cost_usd


def _tries(model: str, tree: Tree) -> list[_Try]:
    """Its candidates, older ones with less weight. An agent that proposes from outside is named by its kind."""
    own = [
        (place, node)
        for place, node in enumerate(tree.nodes)
        if node.proposer != ProposerKind.BUILTIN and (node.model or node.proposer) == model and not says_nothing(node)
    ]
    age = len(tree.nodes) - 1
    return [_Try(node.ok, _gain(node, tree), cost_of(node), DISCOUNT ** (age - place)) for place, node in own]


def _gain(node: Node, tree: Tree) -> float:
    """Log-speedup over the fastest of its parents that works; over the baseline where there is none."""
    if not node.ok or not node.speedup:
        return 0.0
    parents = [tree.by_id[parent] for parent in node.parents if parent in tree.by_id]
    before = max((parent.speedup for parent in parents if parent.ok and parent.speedup), default=1.0)
    return max(0.0, math.log(node.speedup / before))
