"""Candidates without end: the configurations of kernels that were written for a problem, some with a fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

from benchmarks.judge.faults import FAULTS
from benchmarks.record.plan import Entry
from problems.catalog import bundled
from search.tunables import read_space, with_values

BAD = (False, True, False, True, False)


def variants(entry: Entry, seed: int) -> Iterator[str]:
    """Sources of which no two are the same: each has a number of its own. Raises ValueError without proposals."""
    if not entry.proposals:
        raise ValueError(f"nobody wrote a kernel for {entry.problem}")
    dice = random.Random(seed)
    problem = bundled()[entry.problem].source
    for number in count():
        source = dice.choice(entry.proposals).source
        space = read_space(source)
        if space is not None:
            source = with_values(source, dice.choice(list(space.configurations())))
        if BAD[number % len(BAD)]:
            source = dice.choice(list(FAULTS.values()))(source, problem)
        yield f"{source}\nVARIANT = {seed * 1_000_000 + number}\n"
