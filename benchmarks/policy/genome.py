"""Programs as genomes: a structure, values of tunables, and bugs. An edit of a program is an edit of its genome.

A genome stands for one C++ candidate with a source of its own (`benchmarks.policy.programs`). The structure is what a
language model decides (algorithm, how loops are vectorised, how a function is computed, ...), tunables are what the
candidate declares for the tuner, and a bug is one mistake of a kind that models make. How often edits bring bugs is
*chosen* here (`BUG_RATE`, `MEND_RATE`); what a program with a bug does is never chosen: it is compiled and judged.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from search.types import Operator

BUG_RATE: Mapping[str, float] = {
    Operator.SEED: 0.45,
    Operator.REFINE: 0.2,
    Operator.REWRITE: 0.4,
    Operator.CROSSOVER: 0.25,
    Operator.TUNE: 0.0,
}
"""How often an edit brings a bug. First attempts of models at kernels are right 50 to 80 % of the time (KernelBench,
TritonBench: `docs/search.md`); small edits fail less."""

MEND_RATE = 0.55
"""How often a repair removes the bug that the judge has seen. Otherwise it leaves it, or brings another."""

NEW_BUG_RATE = 0.1

PLAIN = 3.0
"""In a search, each value of a gene is so many times less probable in a first attempt than the plainer one before it.
First drafts of models are plain: what was searched from them is 2 to 4 times as fast (EvoKernel, METR: see
`docs/search.md`)."""

ALGORITHM = "algorithm"
"""The gene that decides the family."""


@dataclass(frozen=True, slots=True)
class Genome:
    """One program. The mappings are tuples of pairs, so that genomes are compared and hashed by value."""

    problem: str
    structure: tuple[tuple[str, str], ...]
    tunables: tuple[tuple[str, int], ...]
    bugs: tuple[str, ...] = ()

    def gene(self, name: str) -> str:
        """The value of one gene of the structure."""
        return dict(self.structure)[name]

    @property
    def key(self) -> str:
        """The genome as text: equal for equal programs."""
        genes = [*self.structure, *((name, str(value)) for name, value in self.tunables)]
        return " ".join(f"{name}={value}" for name, value in genes) + "".join(f" +{bug}" for bug in self.bugs)


@dataclass(frozen=True, slots=True)
class Space:
    """All programs of one problem."""

    problem: str
    params: Mapping[str, int | str]
    """The one workload that they are judged on."""
    genes: Mapping[str, Sequence[str]]
    """Values by gene, those of a first attempt before those of an expert."""
    tunables: Mapping[str, Sequence[int]]
    bugs: Sequence[str]
    plans: Mapping[str, str]
    """What a model would say about each algorithm."""
    write: Callable[[Genome], str]
    """The source of a genome."""

    def plan(self, genome: Genome) -> str:
        """The plan in words: algorithm and loops."""
        return f"{self.plans[genome.gene(ALGORITHM)]}; {', '.join(f'{k} {v}' for k, v in genome.structure[1:])}"


def plainest(space: Space) -> Genome:
    """The first value of everything."""
    structure = tuple((name, values[0]) for name, values in space.genes.items())
    return Genome(space.problem, structure, tuple((name, values[0]) for name, values in space.tunables.items()))


def seed(space: Space, dice: random.Random) -> Genome:
    """A first attempt: plain values more often than clever ones."""
    structure = tuple((name, _plain_first(values, dice)) for name, values in space.genes.items())
    tunables = tuple((name, dice.choice(values)) for name, values in space.tunables.items())
    return _with_bug(space, Genome(space.problem, structure, tunables), BUG_RATE[Operator.SEED], dice)


def seed_likelihood(space: Space, genome: Genome) -> float:
    """How probable the genome's structure is as a first attempt, up to a factor.

    Plainer than what `seed` draws: a pool must hold all kinds of programs, a search starts from plain ones.
    """
    return math.prod(PLAIN ** -list(space.genes[name]).index(value) for name, value in genome.structure)


def refine(space: Space, parent: Genome, dice: random.Random) -> Genome:
    """One gene of the structure changed, the algorithm kept."""
    names = [name for name, values in space.genes.items() if name != ALGORITHM and len(values) > 1]
    child = _changed(space, parent, dice.choice(names), dice)
    return _with_bug(space, child, BUG_RATE[Operator.REFINE], dice)


def rewrite(space: Space, parent: Genome, dice: random.Random) -> Genome:
    """Another algorithm; each other gene is thought over again with a chance of 0.3."""
    child = _changed(space, parent, ALGORITHM, dice)
    for name in space.genes:
        if name != ALGORITHM and dice.random() < 0.3:
            child = _changed(space, child, name, dice)
    return _with_bug(space, child, BUG_RATE[Operator.REWRITE], dice)


def crossover(space: Space, parent: Genome, partner: Genome, dice: random.Random) -> Genome:
    """Each gene from either parent."""
    other = dict(partner.structure)
    structure = tuple((name, dice.choice((value, other[name]))) for name, value in parent.structure)
    child = replace(parent, structure=structure, tunables=dice.choice((parent, partner)).tunables)
    return _with_bug(space, child, BUG_RATE[Operator.CROSSOVER], dice)


def tune(space: Space, parent: Genome, dice: random.Random) -> Genome:
    """Another configuration of the same program."""
    drawn = tuple((name, dice.choice(values)) for name, values in space.tunables.items())
    return replace(parent, tunables=drawn)


def repair(space: Space, parent: Genome, dice: random.Random) -> Genome:
    """The bug removed, or not, or another one in its place."""
    fate = dice.random()
    if fate < MEND_RATE:
        return replace(parent, bugs=())
    if fate < MEND_RATE + NEW_BUG_RATE:
        return replace(parent, bugs=(dice.choice(space.bugs),))
    # The bug stays, and something beside it was changed.
    names = [name for name, values in space.genes.items() if name != ALGORITHM and len(values) > 1]
    return _changed(space, parent, dice.choice(names), dice)


def _changed(space: Space, genome: Genome, name: str, dice: random.Random) -> Genome:
    value = dice.choice([other for other in space.genes[name] if other != genome.gene(name)])
    return replace(genome, structure=tuple((gene, value if gene == name else old) for gene, old in genome.structure))


def _with_bug(space: Space, genome: Genome, rate: float, dice: random.Random) -> Genome:
    return replace(genome, bugs=(dice.choice(space.bugs),)) if dice.random() < rate else genome


def _plain_first(values: Sequence[str], dice: random.Random) -> str:
    return dice.choices(values, [1 / (1 + rank) for rank in range(len(values))])[0]
