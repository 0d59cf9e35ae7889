"""Greedy until the search stagnates, then broad: that beat six fixed policies in FML-bench (arXiv 2605.17373).

Both are states of the tree, not of the policy: with the next improvement the search is greedy again.
"""

from __future__ import annotations

from search.tree import Tree
from search.types import JobView

PATIENCE = 8
"""Judged candidates without an improvement before the search broadens."""


def patience(job: JobView) -> int:
    """The patience of a job; at most half of what its own stop rule allows, so that it broadens before it ends."""
    return PATIENCE if job.stop.stagnation is None else max(1, min(PATIENCE, job.stop.stagnation // 2))


def stagnant(job: JobView, tree: Tree) -> bool:
    """Whether the search has gone on for too long without an improvement."""
    return tree.since_improvement >= patience(job)
