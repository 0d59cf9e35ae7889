"""A job's tree as a nested list: who came from whom, flat enough for a template and for any depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from db.candidates import TreeRow
from db.vocabulary import Verdict

MOST = 150
"""Nodes that are drawn: of a larger tree the lines of the fastest, and the latest candidates."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A node in depth-first order. `opens`: its children follow; `closes`: so many lists end behind it."""

    node: TreeRow
    others: Sequence[int]
    """Ordinals of further parents."""
    champion: bool
    opens: bool
    closes: int


@dataclass(frozen=True, slots=True)
class Lineage:
    branches: Sequence[Branch]
    left_out: int


def lineage(nodes: Sequence[TreeRow], best_id: str | None) -> Lineage:
    """The tree; the champion and its first parents are marked."""
    shown = nodes if len(nodes) <= MOST else _chosen(nodes, best_id)
    by_id = {node.id: node for node in shown}
    children: dict[str | None, list[TreeRow]] = defaultdict(list)
    for node in shown:
        above = _first_parent(node)
        children[above if above in by_id else None].append(node)
    line = _line(by_id, best_id)
    every = {node.id: node.ordinal for node in nodes}
    branches: list[Branch] = []
    # (node, how many lists end behind it when it is a leaf); no recursion: a chain may be as long as the budget.
    todo = [(node, 0) for node in reversed(children[None])]
    while todo:
        node, closes = todo.pop()
        below = children[node.id]
        others = [every[parent] for parent in node.parents[1:] if parent in every]
        branches.append(Branch(node, others, node.id in line, bool(below), 0 if below else closes))
        last = len(below) - 1
        todo += reversed([(child, closes + 1 if place == last else 0) for place, child in enumerate(below)])
    return Lineage(branches, len(nodes) - len(shown))


def _first_parent(node: TreeRow) -> str | None:
    return node.parents[0] if node.parents else None


def _line(by_id: Mapping[str, TreeRow], node_id: str | None, known: Container[str] = ()) -> dict[str, None]:
    """The node and its first parents, upwards, until one that is known."""
    line: dict[str, None] = {}
    while node_id in by_id and node_id not in line and node_id not in known:
        assert node_id is not None
        line[node_id] = None
        node_id = _first_parent(by_id[node_id])
    return line


def _chosen(nodes: Sequence[TreeRow], best_id: str | None) -> Sequence[TreeRow]:
    by_id = {node.id: node for node in nodes}
    fast = sorted((n for n in nodes if n.verdict == Verdict.OK), key=lambda n: -(n.speedup or 0))[: MOST // 5]
    keep: dict[str, None] = {}
    for node_id in [best_id, *(n.id for n in fast), *(n.id for n in reversed(nodes))]:
        # Those nearest to the node first: of a chain that is longer than the drawing, its end is shown.
        keep |= dict.fromkeys(list(_line(by_id, node_id, keep))[: MOST - len(keep)])
        if len(keep) >= MOST:
            break
    return [node for node in nodes if node.id in keep]
