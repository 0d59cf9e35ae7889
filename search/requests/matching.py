"""Which bundled problem is nearest to a request, and how it differs.

Weighted overlap of operations: what both have, over what either has (Jaccard), where an operation that few problems
have weighs more. What a problem only mentions in its summary counts for less than what it is named after.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from problems.catalog import Outline
from search.requests.understanding import Wish, concepts_in

SURE = 0.8
"""From here on the match is the thing itself. On the requests of tests/unit/search/requests complete answers score 0.82
and more, nearest ones 0.75 and less."""

SIDE = 0.25
"""Weight of an operation that a problem only mentions, where it was not asked for: LayerNorm's bias."""


@dataclass(frozen=True, slots=True)
class Match:
    """A problem and how near it is, from 0 to 1; `lacks` was asked for and is not in it, `adds` is the reverse."""

    problem: Outline
    score: float
    covers: tuple[str, ...]
    lacks: tuple[str, ...]
    adds: tuple[str, ...]

    @property
    def sure(self) -> bool:
        """Whether it is what was asked for, as far as words can tell."""
        return self.score >= SURE


def rank(wish: Wish, problems: Iterable[Outline]) -> list[Match]:
    """The problems that have something of what was asked for, nearest first; none when no operation is shared."""
    known = list(problems)
    core = {problem.name: concepts_in(problem.name.replace("_", " ")) for problem in known}
    named = {problem.name: core[problem.name] | concepts_in(problem.summary) for problem in known}
    matches = [
        _match(wish, problem, core[problem.name], named[problem.name], list(named.values())) for problem in known
    ]
    return sorted((m for m in matches if m.covers), key=lambda match: (-match.score, match.problem.name))


def _match(
    wish: Wish, problem: Outline, core: frozenset[str], every: frozenset[str], all_problems: Sequence[frozenset[str]]
) -> Match:
    def weight(concept: str) -> float:
        holders = sum(concept in others for others in all_problems)
        return math.log(1 + len(all_problems) / max(holders, 1))

    covers, lacks = wish.concepts & every, wish.concepts - every
    added, mentioned = core - wish.concepts, every - core - wish.concepts
    shared = sum(map(weight, covers))
    apart = sum(map(weight, lacks | added)) + SIDE * sum(map(weight, mentioned))
    return Match(
        problem=problem,
        score=round(shared / (shared + apart), 3) if shared else 0.0,
        covers=tuple(sorted(covers)),
        lacks=tuple(sorted(lacks)),
        adds=tuple(sorted(added)),
    )
