"""The search tree as an index over its nodes: who came from whom, what is spent, what is best, who is failing.

Everything is derived from the nodes and their ordinals, so the same rows always give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from search.types import Expansion, Failure, Node, Operator, ProposerKind, State, Verdict

IMPROVEMENT = 1.01
"""A new best must beat the old one by 1 % to count as progress: below that it is timing noise."""


class Tree:
    """A job's candidates, in order of their ordinals."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: Sequence[Node] = tuple(sorted(nodes, key=lambda node: node.ordinal))

    def grown(self, expansion: Expansion) -> Tree:
        """The tree as it will be when the expansion has become a row. The id is a placeholder that nothing reads."""
        ordinal = self.nodes[-1].ordinal + 1 if self.nodes else 0
        planned = Node(
            id=f"planned-{ordinal}",
            ordinal=ordinal,
            operator=expansion.operator,
            proposer=expansion.proposer,
            model=expansion.model,
            parents=expansion.parents,
        )
        return Tree((*self.nodes, planned))

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """Every node by its id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def _children(self) -> dict[str, list[Node]]:
        children: dict[str, list[Node]] = {}
        for node in self.nodes:
            for parent in node.parents:
                children.setdefault(parent, []).append(node)
        return children

    def children(self, node: Node, *operators: Operator) -> list[Node]:
        """The node's children that one of the operators made, oldest first."""
        return [child for child in self._children.get(node.id, []) if child.operator in operators]

    def made_by(self, operator: Operator, *proposers: ProposerKind) -> list[Node]:
        """All nodes of that operator and of one of the proposers, oldest first."""
        return [node for node in self.nodes if node.operator == operator and node.proposer in proposers]

    @cached_property
    def in_flight(self) -> int:
        """How many candidates are being worked on."""
        return sum(node.in_flight for node in self.nodes)

    @cached_property
    def proposing_models(self) -> int:
        """How many candidates language models are writing, or are about to."""
        return sum(node.proposer == ProposerKind.LLM and node.state == State.PROPOSING for node in self.nodes)

    @cached_property
    def open_asks(self) -> int:
        """How many questions to outside agents have no answer yet."""
        return sum(node.proposer == ProposerKind.ASK_TELL and node.state == State.PROPOSING for node in self.nodes)

    @cached_property
    def asks_exhausted(self) -> bool:
        """Whether an outside agent said that it has nothing more to propose."""
        return any(node.proposer == ProposerKind.ASK_TELL and node.failure == Failure.EXHAUSTED for node in self.nodes)

    @property
    def occupied(self) -> int:
        """How many slots are taken: a question that waits for somebody outside needs neither device nor provider."""
        return self.in_flight - self.open_asks

    @cached_property
    def spent(self) -> int:
        """How much of the candidate budget is taken, by what is in flight too."""
        return sum(not node.free for node in self.nodes)

    @cached_property
    def free_rejections(self) -> int:
        """How many proposals gave their place in the budget back."""
        return len(self.nodes) - self.spent

    @cached_property
    def best(self) -> Node | None:
        """The fastest accepted candidate that was timed; the oldest of equals."""
        timed = [node for node in self.nodes if node.ok and node.speedup is not None]
        return max(timed, key=lambda node: (node.speedup or 0.0, -node.ordinal), default=None)

    @cached_property
    def since_improvement(self) -> int:
        """How many finished candidates there are since the best became better by more than noise.

        Infrastructure failures and free rejections say nothing about the search, so they do not count.
        """
        best, since = 0.0, 0
        for node in self.nodes:
            if node.in_flight or node.free or node.verdict == Verdict.INFRA_ERROR:
                continue
            since += 1
            if node.ok and node.speedup is not None and node.speedup > best * IMPROVEMENT:
                best, since = node.speedup, 0
        return since

    @cached_property
    def provider_errors(self) -> int:
        """How many of the latest finished language-model proposals in a row failed at the provider."""
        return self._error_streak(None)

    def model_errors(self, model: str) -> int:
        """The same for one model."""
        return self._error_streak(model)

    def _error_streak(self, model: str | None) -> int:
        streak = 0
        for node in reversed(self.nodes):
            other = node.proposer != ProposerKind.LLM or (model is not None and node.model != model)
            if other or node.state in (State.PROPOSING, State.CANCELLED):
                continue
            if node.failure != Failure.PROVIDER_ERROR:
                break
            streak += 1
        return streak
