"""The first two steps of every judgement: read the source without running it, then load it in a runner."""

from __future__ import annotations

import ast

from worker.judge.runners.sessions import Runner
from worker.judge.verdict import Fault, Verdict

MAX_SOURCE_BYTES = 1 << 20
MAX_DEPTH = 300
"""Of the syntax tree: the judge reads it by recursion here and there, of which Python allows 1,000 calls."""
LOAD_LIMIT_S = 150.0
"""Builds aside, whose time is not counted."""


def intake(source: str) -> None:
    """Raises Fault `build_error` where the source cannot be a candidate."""
    if len(source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        raise Fault(Verdict.BUILD_ERROR, f"the source is over {MAX_SOURCE_BYTES >> 20} MiB")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as broken:
        raise Fault(Verdict.BUILD_ERROR, f"the file is not Python: {broken}") from broken
    if _deeper_than(tree, MAX_DEPTH):
        raise Fault(Verdict.BUILD_ERROR, f"the file is nested deeper than {MAX_DEPTH} levels")
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assigned = {name.id for node in ast.walk(tree) if isinstance(node, ast.Assign) for name in node.targets
                if isinstance(name, ast.Name)}  # fmt: skip
    if "ModelNew" not in defined | assigned:
        raise Fault(Verdict.BUILD_ERROR, "the file defines no class ModelNew")


def _deeper_than(tree: ast.AST, limit: int) -> bool:
    level: list[ast.AST] = [tree]
    for _depth in range(limit):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def load(runner: Runner, source: str, subject: str, limit_s: float = LOAD_LIMIT_S) -> None:
    """Execute the source in the runner as `subject`; what it builds, the broker builds. Raises Fault."""
    message = {"op": "load", "subject": subject, "source": source, "class": "ModelNew", "compile": None}
    try:
        runner.ask(message, limit_s)
    except Fault as fault:
        if fault.verdict in (Verdict.LAUNCH_ERROR, Verdict.INCORRECT) and "killed" not in fault.reason:
            raise Fault(Verdict.BUILD_ERROR, f"the file does not load: {fault.reason}", fault.log) from fault
        raise
