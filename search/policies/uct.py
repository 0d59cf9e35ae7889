"""Tree search with upper confidence bounds over representatives of (bottleneck x algorithm family) cells.

UCT (Kocsis and Szepesvari, ECML 2006) on kernels scored by log-speedup, as KernelEvolve (arXiv 2512.23236) and
AdaExplore (arXiv 2604.16625) search kernels: a parent's value is the best that came from it, and what is in flight
counts as a visit that gained nothing (virtual loss: Chaslot et al., CG 2008). Only the fastest of each cell compete, so
that one lineage cannot crowd out the others, and a quota sees to it that no cell starves. Greedy until the search
stagnates, then broad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from search.policies import operators
from search.policies.cells import Cell
from search.policies.moves import STEPS, Moves
from search.policies.operators import thompson
from search.policies.stagnation import stagnant
from search.policies.steady import SteadyPolicy, fastest
from search.policy import log_speedup
from search.types import Expansion, Node, Operator

POOL_SIZE = 8
PER_CELL = 2

GREEDY, BROAD, FIXED = 0.05, 0.5, 0.2
"""How much a parent that was seldom tried is favoured, on a scale where the fastest kernel has 1 and the slowest 0.
The last holds where the switch between the first two is off."""

MIX: Mapping[Operator, float] = {**operators.MIX, Operator.REPAIR: 1.0}
"""With half of the usual repairs: what is refined from a few seeds that work is worth more than what may
come of the others (docs/search.md)."""

QUOTA = 8
"""Of C cells each is built upon at least once in QUOTA * C candidates: at most one step of eight goes to quotas."""


@dataclass(frozen=True)
class Uct(SteadyPolicy):
    """The best parent by its promise: how good what came from it is, and how little it was tried."""

    mix: ClassVar[Mapping[Operator, float]] = MIX
    quota: int = QUOTA

    def next_step(self, moves: Moves) -> Expansion | None:
        """A step from the cell that starves, or else from wherever it pays."""
        starving = starving_kernel(moves, self.quota) if self.levers.cells else None
        if starving is None:
            return super().next_step(moves)
        operator = self.operator(moves, [op for op in STEPS if moves.takes(starving, op)])
        return self.step(moves, operator, starving)

    def operator(self, moves: Moves, legal: Sequence[Operator]) -> Operator:
        """By weights; or by what has paid, with a bonus for large steps when the search stagnates. Weights with that
        bonus were not ahead of weights without."""
        return (
            thompson(moves, legal, broad=self._broad(moves)) if self.levers.bandit else super().operator(moves, legal)
        )

    def parent(self, moves: Moves, operator: Operator, parents: Sequence[Node]) -> Node:
        """The representative with the highest upper confidence bound; the oldest of equals."""
        pool = representatives(moves, parents) if self.levers.cells else parents
        weight = (BROAD if self._broad(moves) else GREEDY) if self.levers.broaden else FIXED
        bounds = upper_bounds(moves, pool, weight)
        return max(pool, key=lambda node: (bounds[node.id], -node.ordinal))

    def _broad(self, moves: Moves) -> bool:
        return self.levers.broaden and stagnant(moves.job, moves.tree)


def representatives(moves: Moves, nodes: Sequence[Node]) -> list[Node]:
    """The fastest of each cell, and of all these the fastest."""
    ranked = sorted(nodes, key=lambda node: (-(node.speedup or 0.0), node.ordinal))
    taken: dict[Cell, int] = {}
    chosen = []
    for node in ranked:
        cell = moves.cell(node)
        taken[cell] = taken.get(cell, 0) + 1
        if taken[cell] <= PER_CELL:
            chosen.append(node)
    return chosen[:POOL_SIZE]


def upper_bounds(moves: Moves, nodes: Sequence[Node], weight: float) -> dict[str, float]:
    """For each node: its value between 0 and 1, less its virtual loss, plus what its few visits leave open."""
    values, visits, flying = _backed_up(moves)
    total = 1 + sum(visits.get(moves.kernel(node), 0) for node in nodes)
    scores = {node.id: values.get(moves.kernel(node), log_speedup(node)) for node in nodes}
    low, high = min(scores.values()), max(scores.values())
    bounds = {}
    for node in nodes:
        kernel = moves.kernel(node)
        count, unknown = visits.get(kernel, 0), flying.get(kernel, 0)
        value = (scores[node.id] - low) / (high - low) if high > low else 1.0
        known = (1 + count - unknown) / (1 + count)
        bounds[node.id] = value * known + weight * math.sqrt(math.log(1 + total) / (1 + count))
    return bounds


def _backed_up(moves: Moves) -> tuple[dict[str, float], dict[str, int], dict[str, int]]:
    """For each kernel: the best log-speedup of all that came from it, how many those are, how many are in flight."""
    tree = moves.tree
    values: dict[str, float] = {}
    visits: dict[str, int] = {}
    flying: dict[str, int] = {}
    for node in reversed(tree.nodes):
        own = moves.kernel(node)
        if node.ok:
            values[own] = max(values.get(own, -math.inf), log_speedup(node))
        parents = [tree.by_id[parent] for parent in node.parents if parent in tree.by_id]
        for kernel in dict.fromkeys(moves.kernel(parent) for parent in parents):
            tuned = kernel == own
            visits[kernel] = visits.get(kernel, 0) + 1 + (0 if tuned else visits.get(own, 0))
            flying[kernel] = flying.get(kernel, 0) + node.in_flight + (0 if tuned else flying.get(own, 0))
            values[kernel] = max(values.get(kernel, -math.inf), values.get(own, -math.inf))
    return values, visits, flying


def starving_kernel(moves: Moves, quota: int) -> Node | None:
    """The fastest kernel of the cell that has waited longest, where that is longer than the quota allows."""
    cells: dict[Cell, list[Node]] = {}
    for node in moves.pool:
        if any(moves.takes(node, operator) for operator in STEPS):
            cells.setdefault(moves.cell(node), []).append(node)
    now = len(moves.tree.nodes)
    places = {node.id: place for place, node in enumerate(moves.tree.nodes)}
    waited = []
    for members in cells.values():
        last = max((place for node in members for place in moves.visited(node)), default=-1)
        since = max(last, min(places[node.id] for node in members))
        waited.append((now - since, members))
    hungry = max(waited, key=lambda pair: pair[0], default=None)
    if hungry is None or len(cells) < 2 or hungry[0] <= quota * len(cells):
        return None
    return fastest(hungry[1])
