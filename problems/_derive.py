"""A problem file with other workloads: its SPEC literal is written anew, all else stays character by character."""

from __future__ import annotations

import ast
import pprint
from collections.abc import Mapping, Sequence
from typing import Any

from problems._spec import Workload
from problems.catalog import Outline, outline


def with_workloads(problem: Outline, name: str, workloads: Sequence[Workload]) -> Outline:
    """The problem under another name, judged on these workloads.

    Raises:
        ProblemError: its functions do not take what the workloads give.
        ValueError: the file has no SPEC to write anew.
    """
    statement = _spec_statement(problem.source)
    spec: dict[str, Any] = ast.literal_eval(statement.value) if statement.value is not None else {}
    spec["workloads"] = [_literal(workload) for workload in workloads]
    written = "SPEC = " + pprint.pformat(spec, width=116, sort_dicts=False)
    lines = problem.source.splitlines(keepends=True)
    before, after = lines[: statement.lineno - 1], lines[statement.end_lineno :]
    return outline("".join([*before, written + "\n", *after]), name)


def _spec_statement(source: str) -> ast.Assign | ast.AnnAssign:
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and _names_spec(statement.targets):
            return statement
        if isinstance(statement, ast.AnnAssign) and _names_spec([statement.target]):
            return statement
    raise ValueError("the problem has no SPEC")


def _names_spec(targets: Sequence[ast.expr]) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "SPEC" for target in targets)


def _literal(workload: Workload) -> Mapping[str, Any]:
    written: dict[str, object] = {"name": workload.name, "for": workload.device, "params": dict(workload.params)}
    return written if workload.backward is None else written | {"backward": workload.backward}
