"""What a job may start now: which operators, from which parents. No policy can propose what is not among these moves.

Also what all policies share: the models' and the built-in proposer's turns, the dice, and how often each kernel was
built upon, by what is in flight too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property

from search.asking import answering
from search.lineage import repairable, selection_pool
from search.policies.cells import Cell, cell_of
from search.policies.levers import ALL, Levers
from search.policies.models import pick_model
from search.policy import (
    builtin_seed,
    by_model,
    from_nothing,
    open_spaces,
    port,
    seeds_exhausted,
    tuning,
)
from search.stopping import nobody_to_ask
from search.tree import Tree
from search.types import Expansion, JobView, Node, Operator, ProposerKind

STEPS = (Operator.REPAIR, Operator.REFINE, Operator.REWRITE, Operator.CROSSOVER, Operator.TUNE)
"""Operators that start from a parent in the tree. `port` starts from a kernel of another job (`Moves.port`)."""


class Moves:
    """The legal moves of a job at one moment, and the dice for it: the same job and tree throw the same."""

    def __init__(self, job: JobView, tree: Tree, levers: Levers = ALL) -> None:
        self.job = job
        self.tree = tree
        self.levers = levers
        # By the seed and not by the job's id: the same search again throws the same.
        self.dice = random.Random(f"{job.seed}-{len(tree.nodes)}")
        self._cells: dict[str, Cell] = {}

    @cached_property
    def asking(self) -> bool:
        """Whether there are models that may answer."""
        return bool(self.job.models) and not nobody_to_ask(self.job, self.tree)

    @cached_property
    def waiting(self) -> bool:
        """Whether providers fail and a call that probes them is under way, or nobody is left to ask for now."""
        probing = any(node.in_flight and node.proposer == ProposerKind.LLM for node in self.tree.nodes)
        return self.asking and (self.tree.provider_errors > 0 and probing or not answering(self.job, self.tree))

    @property
    def builtin(self) -> bool:
        """Whether the built-in proposer takes part."""
        return self.job.builtin or not self.job.models

    @property
    def model(self) -> str | None:
        """The model that the next proposal goes to; None: whose turn it is."""
        return pick_model(self.job, self.tree) if self.levers.models else None

    @cached_property
    def builtin_seeds(self) -> list[Node]:
        """The built-in seeds so far."""
        return self.tree.made_by(Operator.SEED, ProposerKind.BUILTIN)

    @cached_property
    def menu_open(self) -> bool:
        """Whether the built-in menu may have another seed."""
        return self.builtin and not seeds_exhausted(self.builtin_seeds)

    @cached_property
    def pool(self) -> list[Node]:
        """The accepted kernels, oldest first; of a kernel and its tuned variants only the fastest."""
        return selection_pool(self.tree)

    @cached_property
    def repairs(self) -> list[Node]:
        """The failed candidates that deserve another try, those with the fewest tries first."""
        return repairable(self.tree) if self.asking and self.levers.repair else []

    @cached_property
    def spaces(self) -> dict[str, Node]:
        """The kernels whose tunables have configurations left to try, the best tuned first."""
        return {node.id: node for node in open_spaces(self.tree)} if self.builtin and self.levers.tune else {}

    def kernel(self, node: Node) -> str:
        """The kernel that the node is, or is a tuned variant of."""
        return node.parents[0] if node.operator == Operator.TUNE and node.parents else node.id

    def cell(self, node: Node) -> Cell:
        """The node's cell."""
        if node.id not in self._cells:
            self._cells[node.id] = cell_of(self.tree, node, self.job.target.language)
        return self._cells[node.id]

    @cached_property
    def _pool_cells(self) -> set[Cell]:
        return {self.cell(node) for node in self.pool}

    def partners(self, node: Node) -> list[Node]:
        """The accepted kernels in other cells, which a crossover may bring in."""
        return [other for other in self.pool if self.cell(other) != self.cell(node)]

    def takes(self, node: Node, operator: Operator) -> bool:
        """Whether the operator can be applied to this parent."""
        if operator == Operator.REPAIR:
            return any(node.id == failed.id for failed in self.repairs)
        if operator == Operator.TUNE:
            return node.ok and self.kernel(node) in self.spaces
        if operator == Operator.CROSSOVER:
            return node.ok and self.asking and self.levers.crossover and bool(self._pool_cells - {self.cell(node)})
        return node.ok and self.asking

    def parents(self, operator: Operator) -> Sequence[Node]:
        """The parents for an operator; none for those that start from nothing."""
        if operator == Operator.REPAIR:
            return self.repairs
        return [node for node in self.pool if self.takes(node, operator)] if operator in STEPS else []

    @cached_property
    def legal(self) -> tuple[Operator, ...]:
        """The operators that can be applied now."""
        steps = tuple(operator for operator in STEPS if self.parents(operator))
        return (*steps, Operator.SEED) if self._may_seed else steps

    @property
    def _may_seed(self) -> bool:
        # A built-in seed in flight may bring a space to tune: wait for it before more are asked for out of turn.
        return self.asking or (self.menu_open and not any(seed.in_flight for seed in self.builtin_seeds))

    def seed(self) -> Expansion:
        """A candidate from nothing, by a model where one may answer; a plain translation where no seed works."""
        if not self.asking:
            return builtin_seed()
        return by_model(from_nothing(self.job, self.tree), (), self.job, self.tree, self.model)

    @property
    def port(self) -> Expansion | None:
        """A kernel that was certified for another target, to be carried over; None when all were tried."""
        return port(self.job, self.tree, asking=self.asking) if self.levers.port else None

    def step(self, operator: Operator, parent: Node, partner: Node | None = None) -> Expansion:
        """The operator applied to a parent that takes it."""
        if operator == Operator.TUNE:
            return tuning(self.spaces[self.kernel(parent)])
        parents = (parent.id,) if partner is None else (parent.id, partner.id)
        return by_model(operator, parents, self.job, self.tree, self.model)

    @cached_property
    def visits(self) -> dict[str, list[int]]:
        """For each kernel, when it or a tuned variant of it was built upon: places in the tree, in order."""
        found: dict[str, list[int]] = {}
        for place, node in enumerate(self.tree.nodes):
            known = [self.tree.by_id[parent] for parent in node.parents if parent in self.tree.by_id]
            for kernel in dict.fromkeys(self.kernel(parent) for parent in known):
                found.setdefault(kernel, []).append(place)
        return found

    def visited(self, node: Node) -> list[int]:
        """When the node's kernel was built upon."""
        return self.visits.get(self.kernel(node), [])
