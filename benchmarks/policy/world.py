"""A recorded pool in the place of proposers and judge: each expansion is answered by a program that was really judged.

How an answer is chosen, in this order:

1. *Does it fail?* By the pool's own failure rate of that operator, from the dice of the search's seed.
2. *Which program?* One that is not in the tree yet and that the operator makes from these parents. Fit is counted in
   genes: a refine keeps the algorithm and changes one gene, a rewrite changes the algorithm, a crossover takes each
   gene from either parent, a repair keeps the structure, a tuning step changes nothing but tunables; a seed may be any
   program, as probable as it is as a first attempt. A recorded child of this very parent under this operator counts
   `RECORDED` times as much as another program that fits.
3. Where no program fits, the nearest one is taken: the one that misses by the fewest genes. How often that happens is
   counted (`Answers`) and published beside the results.

Nothing is interpolated: verdict, speedup, device seconds are those of the program that answers. What is *not* real is
the proposer: a language model would choose edits by what it reads; here they are drawn among the recorded ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from benchmarks.policy.genome import ALGORITHM, Genome, Space, seed_likelihood
from benchmarks.policy.pool import Record, failures
from search.types import Expansion, Failure, Node, Operator, State

RECORDED = 4.0
PER_TUNABLE = 0.7
"""How much less a program counts for each tunable in which it differs: an edit leaves most of them alone."""

CALL_USD: Mapping[str, Decimal] = {
    Operator.SEED: Decimal("0.03"),
    Operator.TRANSLATE: Decimal("0.03"),
    Operator.REFINE: Decimal("0.02"),
    Operator.REPAIR: Decimal("0.02"),
    Operator.REWRITE: Decimal("0.03"),
    Operator.CROSSOVER: Decimal("0.04"),
    Operator.TUNE: Decimal(0),
}
"""What a call costs here: the order of a mid-priced model at 4,000 tokens in and 1,500 out. Tuning asks no model."""


@dataclass(slots=True)
class Answers:
    """How expansions were answered."""

    recorded: int = 0
    """By a recorded child of the same parent under the same operator, or a recorded seed."""
    fitting: int = 0
    """By another program that the operator makes from that parent."""
    nearest: int = 0
    """By the nearest program, where none fits."""
    none: int = 0
    """Not at all: nothing is left (a tuner at the end of its space)."""

    def add(self, other: Answers) -> None:
        """Count the other's too."""
        self.recorded += other.recorded
        self.fitting += other.fitting
        self.nearest += other.nearest
        self.none += other.none


@dataclass(slots=True)
class World:
    """One search's world: the pool, and which of its programs the search has seen."""

    space: Space
    records: Sequence[Record]
    seed: int
    answers: Answers = field(default_factory=Answers)
    seen: set[int] = field(default_factory=set)
    held: dict[str, Record] = field(default_factory=dict)
    """By node id: the program that the node is."""
    _failing: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self._failing = failures(self.records)

    def answer(self, node: Node) -> Node:
        """The planned node as it is when it has been proposed and judged."""
        dice = random.Random(f"{self.seed}-{node.ordinal}-{node.operator}-{','.join(node.parents)}")
        operator = Operator.SEED if node.operator == Operator.TRANSLATE else Operator(node.operator)
        chosen = self._choose(operator, [self.held[parent] for parent in node.parents], dice)
        if chosen is None:
            self.answers.none += 1
            failure = Failure.EXHAUSTED if operator == Operator.TUNE else Failure.NO_CODE
            return _ended(node, state=State.REJECTED, failure=failure)
        self.seen.add(chosen.id)
        self.held[node.id] = chosen
        return _ended(
            node,
            state=State.EVALUATED,
            verdict=chosen.verdict,
            speedup=chosen.speedup,
            tunable=chosen.ok,
            params=dict(chosen.genome.tunables) if operator == Operator.TUNE else None,
            source_hash=chosen.source,
            plan=self.space.plan(chosen.genome),
            cost_usd=CALL_USD[operator] if node.model else Decimal(0),
            gpu_s=chosen.device_s,
            sol_fraction=chosen.sol_fraction,
        )

    def _choose(self, operator: Operator, parents: Sequence[Record], dice: random.Random) -> Record | None:
        fails = dice.random() < self._failing.get(operator, 0.0)
        fresh = [record for record in self.records if record.id not in self.seen]
        # What is asked for may have run out; the other kind is then all that is left.
        for wanted in (fails, not fails):
            chosen = self._among([record for record in fresh if record.ok != wanted], operator, parents, dice)
            if chosen is not None:
                return chosen
        return None

    def _among(
        self, records: Sequence[Record], operator: Operator, parents: Sequence[Record], dice: random.Random
    ) -> Record | None:
        genomes = [parent.genome for parent in parents]
        misses = [(misfit(operator, genomes, record), record) for record in records]
        allowed = [(miss, record) for miss, record in misses if miss is not None]
        if not allowed:
            return None
        least = min(miss for miss, _record in allowed)
        fitting = [record for miss, record in allowed if miss == least]
        ids = tuple(parent.id for parent in parents)
        own = [record.operator == operator and record.parents == ids for record in fitting]
        weights = [
            (RECORDED if recorded and parents else 1.0) * self._likelihood(genomes, record.genome)
            for recorded, record in zip(own, fitting, strict=True)
        ]
        (place,) = dice.choices(range(len(fitting)), weights)
        self._count(least, recorded=own[place])
        return fitting[place]

    def _likelihood(self, parents: Sequence[Genome], child: Genome) -> float:
        """How probable the child is as an edit of the parents, or as a first attempt, up to a factor."""
        return PER_TUNABLE ** _tunables_apart(parents[0], child) if parents else seed_likelihood(self.space, child)

    def _count(self, miss: int, *, recorded: bool) -> None:
        if miss:
            self.answers.nearest += 1
        elif recorded:
            self.answers.recorded += 1
        else:
            self.answers.fitting += 1


def misfit(operator: Operator, parents: Sequence[Genome], record: Record) -> int | None:
    """By how many genes the record misses being what the operator makes of the parents; None: it never can be."""
    child = record.genome
    if not parents:
        return 0
    parent = parents[0]
    apart = [
        name for (name, value), (_name, other) in zip(parent.structure, child.structure, strict=True) if value != other
    ]
    if operator == Operator.TUNE:
        # Tuning is exact or not at all: the tuner knows its space.
        return 0 if not apart and record.ok and child.tunables != parent.tunables else None
    if operator == Operator.REPAIR:
        return len(apart)
    if operator == Operator.REWRITE:
        return 0 if ALGORITHM in apart else 1
    if operator == Operator.CROSSOVER and len(parents) > 1:
        other = dict(parents[1].structure)
        foreign = sum(value not in (other[name], dict(parent.structure)[name]) for name, value in child.structure)
        return foreign + (not apart)
    return abs(len(apart) - 1) + (2 if ALGORITHM in apart else 0)


def _tunables_apart(parent: Genome, child: Genome) -> int:
    return sum(one != other for one, other in zip(parent.tunables, child.tunables, strict=True))


def planned(expansion: Expansion, ordinal: int) -> Node:
    """The node of an expansion, in flight."""
    return Node(
        id=f"c{ordinal}",
        ordinal=ordinal,
        operator=expansion.operator,
        proposer=expansion.proposer,
        model=expansion.model,
        parents=expansion.parents,
    )


def _ended(node: Node, **found: object) -> Node:
    return replace(node, **found)  # type: ignore[arg-type]
