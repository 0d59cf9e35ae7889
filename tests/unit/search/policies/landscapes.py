"""A landscape for policies: families of kernels, each with its own ceiling that small steps climb towards.

What is not asked of the landscape stays as in a `World`: failures, duplicates, providers that are down.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from search.lineage import MAX_REPAIRS, REPAIRABLE
from search.policies.cells import cell_of
from search.tree import Tree
from search.types import Expansion, Node, Operator, PolicyName, ProposerKind, State, StopRules, Verdict
from tests.unit.search.worlds import World, job_view

PLANS = (
    "one pass per row",
    "split the reduction, then add the pieces",
    "tiles for the tensor cores",
    "a persistent kernel",
    "as it is",
)
CEILINGS = (1.2, 1.5, 2.5, 4.0, 1.1)
STEP = 0.3
"""Share of the way to the ceiling that a refinement goes on average."""

NAMED = [name for name in PolicyName if name != PolicyName.DEFAULT]


@dataclass
class Landscape(World):
    """A world whose kernels inherit: a small step stays in its parent's family and gets closer to its ceiling."""

    def _proposed(self, node: Node) -> Node:
        plan = PLANS[self.dice.randrange(len(PLANS))]
        cost_usd = Decimal("0.01") if node.proposer == ProposerKind.LLM else Decimal(0)
        return replace(super()._proposed(node), plan=plan, cost_usd=cost_usd)

    def _judged(self, node: Node) -> Node:
        judged = super()._judged(node)
        if judged.speedup is None:
            return judged
        ceiling = CEILINGS[PLANS.index(self._origin(node).plan or PLANS[0])]
        start = max((self.nodes[parent].speedup or 0.5 for parent in node.parents), default=0.5)
        speedup = start + max(0.0, ceiling - start) * self.dice.random() * 2 * STEP
        return replace(judged, speedup=speedup, gpu_s=0.5, sol_fraction=min(1.0, speedup / 4))

    def _origin(self, node: Node) -> Node:
        while node.operator in (Operator.REFINE, Operator.TUNE, Operator.REPAIR):
            node = self.nodes[node.parents[0]]
        return node


def landscape(
    seed: int, policy: str, candidates: int = 40, *, models: tuple[str, ...] = ("a", "b"), **world: Any
) -> Landscape:
    """A landscape with a job that asks for the policy."""
    slots = world.pop("slots", 2)
    job = job_view(
        candidates, policy=policy, models=models, slots=slots, seed=seed, stop=world.pop("stop", StopRules())
    )
    return Landscape(job=job, dice=random.Random(seed), **world)


landscapes = st.builds(
    lambda seed, policy, candidates, slots, models, builtin, stop, rates: Landscape(
        job=job_view(candidates, policy=policy, slots=slots, models=models, builtin=builtin, seed=seed % 7, stop=stop),
        dice=random.Random(seed),
        menu=rates[0],
        space=rates[1],
        failing=rates[2],
        duplicate=rates[3],
        provider_down=rates[4],
    ),
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(NAMED),
    candidates=st.integers(1, 25),
    slots=st.integers(1, 6),
    models=st.sampled_from([(), ("a",), ("a", "b")]),
    builtin=st.booleans(),
    stop=st.builds(StopRules, st.none() | st.floats(2.0, 4.0), st.none() | st.integers(1, 12)),
    rates=st.tuples(
        st.integers(0, 6),
        st.integers(0, 12),
        st.sampled_from([0.0, 0.3, 1.0]),
        st.sampled_from([0.0, 0.2, 1.0]),
        st.sampled_from([0.0, 0.2, 1.0]),
    ),
)


def node(ordinal: int, operator: str = Operator.SEED, proposer: str = ProposerKind.LLM, **changes: Any) -> Node:
    """An accepted kernel as fast as the baseline, unless it is said otherwise."""
    made = Node(f"c{ordinal}", ordinal, operator, proposer, state=State.EVALUATED, verdict=Verdict.OK, speedup=1.0)
    return replace(made, **changes)


def flying(ordinal: int, operator: str = Operator.REFINE, **changes: Any) -> Node:
    """A candidate in flight."""
    return node(ordinal, operator, state=State.EVALUATING, verdict=None, speedup=None, **changes)


def failed(ordinal: int, operator: str = Operator.SEED, **changes: Any) -> Node:
    """A candidate with an honest bug."""
    return node(ordinal, operator, verdict=Verdict.INCORRECT, speedup=None, **changes)


def fits(expansion: Expansion, tree: Tree, world: Landscape) -> bool:
    """Whether the parents are of the kind and number that the operator takes, in terms of the tree alone."""
    parents = [tree.by_id[parent] for parent in expansion.parents]
    by_model = expansion.proposer == ProposerKind.LLM
    if by_model and expansion.model not in world.job.models:
        return False
    match expansion.operator:
        case Operator.SEED | Operator.TRANSLATE:
            return parents == []
        case Operator.TUNE:
            (kernel,) = parents
            return kernel.ok and kernel.tunable and kernel.operator != Operator.TUNE and not by_model
        case Operator.REPAIR:
            (broken,) = parents
            return broken.verdict in REPAIRABLE and _repairs_above(broken, tree) < MAX_REPAIRS and by_model
        case Operator.CROSSOVER:
            one, other = parents
            cells = {cell_of(tree, parent, world.job.target.language) for parent in (one, other)}
            return one.ok and other.ok and len(cells) == 2 and by_model
        case Operator.REFINE | Operator.REWRITE:
            (parent,) = parents
            return parent.ok and by_model
    return False


def _repairs_above(node: Node, tree: Tree) -> int:
    count = 0
    while node.operator == Operator.REPAIR:
        count, node = count + 1, tree.by_id[node.parents[0]]
    return count
