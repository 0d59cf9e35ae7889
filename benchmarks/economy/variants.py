"""Candidates without end: the configurations of kernels that were written for a problem, some with a fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice

from benchmarks.judge.faults import FAULTS
from benchmarks.record.plan import Entry
from problems.catalog import bundled
from search.tunables import read_space, with_values

BAD = (False, True, False, True, False)
"""Of every five: the first is the control. Faults come in turn, so that runs are of the same mixture."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate, and whether it is the control: the same kernel each time, by which timings are compared."""

    source: str
    is_control: bool = False


def variants(entry: Entry, seed: int, *, controls_only: bool = False) -> Iterator[Variant]:
    """Of their sources no two are the same: each has a number of its own. Raises ValueError without proposals.
    `controls_only`: evaluations that are as long as each other, so that a few tell how many there are in an hour."""
    if not entry.proposals:
        raise ValueError(f"nobody wrote a kernel for {entry.problem}")
    dice = random.Random(seed)
    problem = bundled()[entry.problem].source
    honest = entry.proposals[0].source
    # Answers that the service refuses at once are no evaluations.
    possible = [fault for fault in FAULTS.values() if "class ModelNew" in fault(honest, problem)]
    faults = islice(cycle(possible), seed, None)
    for number in count():
        is_control = controls_only or number % len(BAD) == 0
        source = honest if is_control else dice.choice(entry.proposals).source
        space = None if is_control else read_space(source)
        if space is not None:
            source = with_values(source, dice.choice(list(space.configurations())))
        if not is_control and BAD[number % len(BAD)]:
            source = next(faults)(source, problem)
        yield Variant(f"{source}\nVARIANT = {seed * 1_000_000 + number}\n", is_control)
