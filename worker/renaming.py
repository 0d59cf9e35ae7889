"""Rename the names of a module in its syntax tree, and leave those alone that only look like them.

    Renamer({"BLOCK": "BLOCK__1"}).visit(copy.deepcopy(statement))

A function's own argument `BLOCK`, as Triton's kernels have them, is not the module's.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound_in(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that this code binds in its own scope: what is stored, functions, classes and imports, and not what
    the scopes within it bind."""
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        if not isinstance(node, (*SCOPES, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)
    return found


class Renamer(ast.NodeTransformer):
    """Gives the module's names the number of their configuration; where a function binds one itself, it is another."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        node.decorator_list = [self.visit(decorator) for decorator in node.decorator_list]
        self._visit_signature(node.args)
        inner = self._within(_arguments(node.args) | bound_in(node.body))
        node.body = [inner.visit(statement) for statement in node.body]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._visit_signature(node.args)
        node.body = self._within(_arguments(node.args)).visit(node.body)
        return node

    def _visit_comprehension(self, node: ast.AST) -> ast.AST:
        # The first iterable belongs to the scope outside; a name that is both read there and bound here is too rare.
        generators: Sequence[ast.comprehension] = getattr(node, "generators")  # noqa: B009 - four classes have it
        bound = bound_in([generator.target for generator in generators])
        return ast.NodeTransformer.generic_visit(self._within(bound), node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _visit_signature(self, arguments: ast.arguments) -> None:
        """Defaults and annotations are evaluated outside."""
        arguments.defaults = [self.visit(default) for default in arguments.defaults]
        arguments.kw_defaults = [default and self.visit(default) for default in arguments.kw_defaults]
        for argument in _each(arguments):
            argument.annotation = argument.annotation and self.visit(argument.annotation)

    def _within(self, bound: set[str]) -> Renamer:
        return Renamer({name: new for name, new in self._names.items() if name not in bound})


def _each(arguments: ast.arguments) -> list[ast.arg]:
    stars = [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars]


def _arguments(arguments: ast.arguments) -> set[str]:
    return {argument.arg for argument in _each(arguments)}
