"""One search in a recorded world: `search.advance` decides, the world answers, and the best so far is written down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from benchmarks.policy.genome import Space
from benchmarks.policy.pool import Record
from benchmarks.policy.world import Answers, World, planned
from search.advance import advance
from search.policy import Policy
from search.types import Budget, JobView, Node, State, Target

SLOTS = 4
"""Candidates in flight, as in a service with a few workers. They end in the order in which they began."""

MODELS = ("recorded",)


@dataclass(frozen=True, slots=True)
class Run:
    """What one search came to."""

    curve: tuple[float, ...]
    """Best log-speedup so far after each place of the budget: 0 for the pool's slowest program or none, 1 for its
    fastest."""
    final: float
    """The best speedup."""
    area: float
    """Mean of the curve: 1 for a search whose first candidate is the pool's best."""
    cost_usd: float
    device_s: float
    answers: Answers


def search(space: Space, records: Sequence[Record], policy: Policy, seed: int, budget: int) -> Run:
    """Search the pool with a policy. The same arguments give the same run."""
    world = World(space, records, seed)
    job = JobView(
        id=space.problem,
        target=Target("cpu", "cpp"),
        budget=Budget(candidates=budget),
        models=MODELS,
        seed=seed,
        slots=SLOTS,
    )
    nodes: list[Node] = []
    while True:
        decision = advance(job, nodes, policy)
        if decision.stop_reason is not None:
            break
        nodes += [planned(expansion, len(nodes) + place) for place, expansion in enumerate(decision.expansions)]
        first = next(place for place, node in enumerate(nodes) if node.in_flight)
        nodes[first] = world.answer(nodes[first])
        job = _charged(job, nodes[first])
    return _run(nodes, records, budget, world.answers)


def _charged(job: JobView, node: Node) -> JobView:
    return replace(job, cost_usd=job.cost_usd + node.cost_usd, gpu_s=job.gpu_s + node.gpu_s)


def _run(nodes: Sequence[Node], records: Sequence[Record], budget: int, answers: Answers) -> Run:
    floor, ceiling = scale(records)
    best: float | None = None
    curve = []
    for node in nodes:
        if node.free:
            continue
        if node.ok and node.speedup is not None:
            best = max(best or 0.0, node.speedup)
        curve.append(0.0 if best is None else (math.log(best) - floor) / (ceiling - floor))
    curve += [curve[-1] if curve else 0.0] * (budget - len(curve))
    return Run(
        curve=tuple(curve),
        final=best or 0.0,
        area=sum(curve) / budget,
        cost_usd=float(sum((node.cost_usd for node in nodes), Decimal(0))),
        device_s=sum(node.gpu_s for node in nodes if node.state == State.EVALUATED),
        answers=answers,
    )


def scale(records: Sequence[Record]) -> tuple[float, float]:
    """Log-speedups that count as 0 and as 1: of the slowest and of the fastest accepted program of a pool."""
    logs = [math.log(record.speedup) for record in records if record.ok and record.speedup]
    return min(logs), max(logs)
