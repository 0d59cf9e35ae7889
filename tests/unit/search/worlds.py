"""Simulated worlds for the search: proposers and a judge that answer by the dice, without I/O.

`World` plays a whole job: it asks `advance`, turns expansions into nodes, and lets things finish in random order. It is
the fixture of the property tests; nothing here stands in for code of ours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from decimal import Decimal

from search.advance import advance
from search.policy import Policy
from search.types import (
    IN_FLIGHT,
    Budget,
    Decision,
    Failure,
    JobView,
    Node,
    Operator,
    ProposerKind,
    State,
    StopRules,
    Target,
    Verdict,
)

MAX_MOVES = 600
"""Twice what the largest world of the property tests can need: 25 candidates and 75 free rejections, 3 moves each."""

FAILED_VERDICTS = [verdict for verdict in Verdict if verdict != Verdict.OK]


def job_view(candidates: int = 20, **changes: object) -> JobView:
    """A job for the CPU with a budget of candidates and whatever else is said."""
    job = JobView(id="job_1", target=Target("cpu", "cpp"), budget=Budget(candidates=candidates), stop=StopRules())
    return replace(job, **changes)  # type: ignore[arg-type]


@dataclass
class World:
    """What the dice are loaded with, and the job's tree so far."""

    job: JobView
    dice: random.Random
    menu: int = 6
    space: int = 12
    failing: float = 0.3
    duplicate: float = 0.1
    provider_down: float = 0.1
    nodes: dict[str, Node] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    policy: Policy | None = None
    """In place of the job's."""

    @property
    def tree(self) -> list[Node]:
        return list(self.nodes.values())

    def step(self) -> Decision:
        """Ask once, and turn the answer into nodes."""
        decision = advance(self.job, self.tree, self.policy)
        self.decisions.append(decision)
        for expansion in decision.expansions:
            ordinal = len(self.nodes)
            node = Node(
                id=f"cand_{ordinal:04}",
                ordinal=ordinal,
                operator=expansion.operator,
                proposer=expansion.proposer,
                model=expansion.model,
                parents=expansion.parents,
            )
            self.nodes[node.id] = node
        return decision

    def something_happens(self) -> None:
        """One candidate in flight moves on: it is proposed, or judged."""
        moving = [node for node in self.tree if node.state in IN_FLIGHT]
        node = self.dice.choice(moving)
        moved = self._proposed(node) if node.state == State.PROPOSING else self._judged(node)
        self.nodes[node.id] = moved
        self.job = replace(self.job, elapsed_s=self.job.elapsed_s + 1.0)

    def run(self, limit: int = MAX_MOVES) -> str:
        """Play to the end; the stop reason. A job that has not ended after `limit` moves never will."""
        for _ in range(limit):
            decision = self.step()
            if decision.stop_reason is not None:
                return decision.stop_reason
            self.something_happens()
        raise AssertionError(f"no end after {limit} moves")

    def _proposed(self, node: Node) -> Node:
        if node.proposer == ProposerKind.LLM:
            return self._answered(node)
        if node.proposer == ProposerKind.ASK_TELL:
            return self._told(node)
        if node.operator == Operator.SEED:
            return self._exhausted_or_queued(node, self._earlier(node), self.menu)
        return self._exhausted_or_queued(node, self._earlier(node), self.space)

    def _answered(self, node: Node) -> Node:
        if self.dice.random() < self.provider_down:
            return replace(node, state=State.REJECTED, failure=Failure.PROVIDER_ERROR)
        self.job = replace(self.job, cost_usd=self.job.cost_usd + Decimal("0.01"))
        if self.dice.random() < self.failing / 2:
            failures = [Failure.NO_CODE, Failure.TRUNCATED, Failure.DIFF_FAILED, Failure.REFUSED]
            return replace(node, state=State.REJECTED, failure=self.dice.choice(failures))
        return self._duplicate_or_queued(node)

    def _told(self, node: Node) -> Node:
        """An outside agent costs nothing and never fails as a provider does; its answer may hold no code."""
        if self.dice.random() < self.failing / 2:
            return replace(node, state=State.REJECTED, failure=Failure.NO_CODE)
        return self._duplicate_or_queued(node)

    def _exhausted_or_queued(self, node: Node, earlier: int, size: int) -> Node:
        if earlier >= size:
            return replace(node, state=State.REJECTED, failure=Failure.EXHAUSTED)
        return self._duplicate_or_queued(node)

    def _duplicate_or_queued(self, node: Node) -> Node:
        if self.dice.random() < self.duplicate:
            return replace(node, state=State.REJECTED, failure=Failure.DUPLICATE)
        return replace(node, state=State.QUEUED)

    def _earlier(self, node: Node) -> int:
        same = [
            n for n in self.tree if (n.operator, n.proposer, n.parents) == (node.operator, node.proposer, node.parents)
        ]
        return sum(n.ordinal < node.ordinal for n in same)

    def _judged(self, node: Node) -> Node:
        self.job = replace(self.job, gpu_s=self.job.gpu_s + 0.5)
        if self.dice.random() < self.failing:
            return replace(node, state=State.EVALUATED, verdict=self.dice.choice(FAILED_VERDICTS))
        speedup = self.dice.lognormvariate(0.0, 0.5)
        tunable = self.dice.random() < 0.6
        return replace(node, state=State.EVALUATED, verdict=Verdict.OK, speedup=speedup, tunable=tunable)
