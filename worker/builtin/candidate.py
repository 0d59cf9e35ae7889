"""Write a whole candidate file round a kernel: the reference's class with its constructor kept and its forward
replaced.

A candidate must take the reference's constructor arguments and have its state dict. The surest way is to keep the
reference's own `__init__`, and of its module only what that needs; the class is renamed to `ModelNew`. The new forward
keeps the reference's signature and hands its tensors to a module-level function `_run`.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from worker.builtin.expressions import Unmatched

_DROPPED = {"SPEC", "get_inputs", "get_init_inputs", "Model", "__all__"}
_OUR_IMPORTS = ("import math", "import torch", "from torch import nn")


def candidate(
    problem_source: str,
    *,
    plan: str,
    imports: Sequence[str],
    tunables: Mapping[str, Sequence[object]],
    defaults: Mapping[str, object],
    constraints: Sequence[str],
    kernel: str,
    returns: str,
) -> str:
    """The file. `kernel` is module-level code that defines what the expression `returns` calls.

    `returns` is evaluated in forward, where the reference's argument names and `self` are in scope. Raises Unmatched
    when the reference's class cannot be kept.
    """
    kept, model = reference_class(problem_source, returns)
    lines = [f'"""{_docstring(plan)}"""', ""]
    lines += sorted({*_OUR_IMPORTS, *imports})
    lines += ["", *kept, ""] if kept else [""]
    lines += [f"TUNABLES = {dict(tunables)!r}", *([f"CONSTRAINTS = {list(constraints)!r}"] if constraints else [])]
    lines += [f"{name} = {defaults[name]!r}" for name in tunables]
    lines += ["", kernel.strip(), "", "", model, ""]
    source = "\n".join(lines)
    _refuse_clashes(ast.parse(source))
    return source


def _docstring(plan: str) -> str:
    text = plan.strip().replace("\\", "\\\\").replace('"""', "'''")
    return "\n".join(textwrap.wrap(text, 110))


def _refuse_clashes(tree: ast.Module) -> None:
    """A name of the reference's module must not be one of the recipe's."""
    seen: set[str] = set()
    for statement in tree.body:
        for name in () if isinstance(statement, ast.Import | ast.ImportFrom) else set(defined_names(statement)):
            if name in seen:
                raise Unmatched(f"the reference's {name} clashes with the recipe's")
            seen.add(name)


def reference_class(source: str, returns: str) -> tuple[list[str], str]:
    """(the module-level statements that the class needs, the class as `ModelNew` with a forward that returns
    `returns`)."""
    module = ast.parse(source)
    model = next((s for s in module.body if isinstance(s, ast.ClassDef) and s.name == "Model"), None)
    if model is None:
        raise Unmatched("the reference defines no class Model")
    model.name = "ModelNew"
    model.body = _methods(model, returns)
    for node in ast.walk(model):
        if isinstance(node, ast.Name) and node.id == "Model":
            node.id = "ModelNew"
    ast.fix_missing_locations(model)
    return [ast.unparse(statement) for statement in _needed(module, model)], ast.unparse(model)


def _methods(model: ast.ClassDef, returns: str) -> list[ast.stmt]:
    """The class's body: its constructor, what that calls, and the new forward in place of the old."""
    functions = {s.name: s for s in model.body if isinstance(s, ast.FunctionDef)}
    if "forward" not in functions:
        raise Unmatched("the reference inherits its forward")
    kept = {"forward"} | {n for n in functions if n.startswith("__")}
    pending = [n for n in kept if n != "forward"]
    while pending:
        for node in ast.walk(functions[pending.pop()]):
            if isinstance(node, ast.Attribute) and node.attr in functions and node.attr not in kept:
                kept.add(node.attr)
                pending.append(node.attr)
    forward = functions["forward"]
    forward.body = [ast.Return(ast.parse(returns, mode="eval").body)]
    forward.returns = None
    # Annotations are dropped with the imports that they might need.
    for argument in (*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs):
        argument.annotation = None
    body: list[ast.stmt] = []
    for statement in model.body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        unused = isinstance(statement, ast.FunctionDef) and statement.name not in kept
        if not is_docstring and not unused:
            body.append(statement)
    return body


def defined_names(statement: ast.AST) -> Iterator[str]:
    """The names that a module-level statement binds, in its branches too; what functions inside bind is theirs."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield (alias.asname or alias.name).split(".")[0]
    elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
        yield statement.id
    else:
        for child in ast.iter_child_nodes(statement):
            yield from defined_names(child)


def _needed(module: ast.Module, model: ast.ClassDef) -> list[ast.stmt]:
    """The module's statements that define names used by the class, directly or through one another, in their order."""
    statements = [s for s in module.body if s is not model and not (_DROPPED & set(defined_names(s)))]
    wanted = _used_names(model)
    kept: set[int] = set()
    grew = True
    while grew:
        grew = False
        for index, statement in enumerate(statements):
            if index not in kept and wanted & set(defined_names(statement)):
                kept.add(index)
                wanted |= _used_names(statement)
                grew = True
    chosen = [s for i, s in enumerate(statements) if i in kept and ast.unparse(s) not in _OUR_IMPORTS]
    return [s for s in chosen if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")]


def _used_names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
