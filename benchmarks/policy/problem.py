"""The problems as the pools judge them: a bundled reference with one small workload in place of its own three."""

from __future__ import annotations

import ast

from benchmarks.policy.genome import Space
from problems.catalog import bundled

WORKLOAD = "pool"


def source_of(space: Space) -> str:
    """The problem file. Small, so that a judgement takes a second or two; its rows leave a rest in every vector."""
    tree = ast.parse(bundled()[space.problem].source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SPEC":
            spec = ast.literal_eval(node.value)
            workload = {"name": WORKLOAD, "for": "cpu", "params": dict(space.params), "backward": False}
            spec["workloads"] = [workload]  # the programs have no backward
            node.value = ast.parse(repr(spec), mode="eval").body
    return ast.unparse(tree)
