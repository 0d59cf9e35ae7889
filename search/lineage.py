"""Families in the tree: chains of repairs, and a kernel with its tuned variants."""

from __future__ import annotations

from search.tree import Tree
from search.types import Failure, Node, Operator, ProposerKind, State, Verdict

MAX_REPAIRS = 3
"""Tries for one lineage. Later tries rarely succeed and cost what a fresh idea costs."""

REPAIRABLE = frozenset(
    {
        Verdict.BUILD_ERROR,
        Verdict.LAUNCH_ERROR,
        Verdict.ILLEGAL_ACCESS,
        Verdict.TIMEOUT,
        Verdict.INCORRECT,
        Verdict.NONDETERMINISTIC,
    }
)
"""Honest failures. `suspicious` is not among them: a kernel that cheats is not helped to cheat better."""


def repairable(tree: Tree) -> list[Node]:
    """The failed candidates that deserve another try, one for each lineage, those with the fewest tries first."""
    lineages: dict[str, list[Node]] = {}
    for node in tree.nodes:
        if node.proposer != ProposerKind.BUILTIN:
            lineages.setdefault(_root(tree, node).id, []).append(node)
    open_lineages = [members for members in lineages.values() if _deserves_repair(members)]
    open_lineages.sort(key=lambda members: (_tries(members), members[0].ordinal))
    return [_latest_failed(members) for members in open_lineages]


def selection_pool(tree: Tree) -> list[Node]:
    """The accepted candidates worth building on: of a kernel and its tuned variants only the fastest."""
    champions: dict[str, Node] = {}
    for node in tree.nodes:
        if not node.ok:
            continue
        family = node.parents[0] if node.operator == Operator.TUNE and node.parents else node.id
        champion = champions.get(family)
        if champion is None or (node.speedup or 0.0) > (champion.speedup or 0.0):
            champions[family] = node
    return sorted(champions.values(), key=lambda node: node.ordinal)


def _root(tree: Tree, node: Node) -> Node:
    while node.operator == Operator.REPAIR and node.parents and node.parents[0] in tree.by_id:
        node = tree.by_id[node.parents[0]]
    return node


def _deserves_repair(members: list[Node]) -> bool:
    if any(node.in_flight or node.ok or node.verdict == Verdict.SUSPICIOUS for node in members):
        return False
    return _tries(members) < MAX_REPAIRS and any(_failed(node) for node in members)


def _tries(members: list[Node]) -> int:
    """Repairs so far. A provider's or our own infrastructure's failure is not the lineage's, nor is a cap."""
    return sum(
        node.operator == Operator.REPAIR
        and node.failure not in (Failure.PROVIDER_ERROR, Failure.BUDGET)
        and node.verdict != Verdict.INFRA_ERROR
        for node in members
    )


def _latest_failed(members: list[Node]) -> Node:
    return [node for node in members if _failed(node)][-1]


def _failed(node: Node) -> bool:
    return node.state == State.EVALUATED and node.verdict in REPAIRABLE
