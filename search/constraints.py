"""Constraints between tunables, such as `BLOCK * WARPS <= 4096`, evaluated without running anybody's code.

A constraint is one Python expression over the tunables: numbers, strings, `+ - * / // %`, comparisons (chained and `in`
a tuple too), `and`, `or`, `not`. No calls, no attributes, no subscripts, no powers: nothing that could be slow or reach
out.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from search.types import ParamValue

MAX_LENGTH = 400
"""Characters. Keeps the depth of the expression, and so of the recursion, small."""

ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}


class ConstraintError(ValueError):
    """The constraint is not an expression over the tunables.

    Use names of tunables, numbers, `+ - * / // %`, comparisons, `and`, `or` and `not`.
    """


def check(constraint: str, names: frozenset[str]) -> None:
    """Raise ConstraintError unless the constraint is an expression that `satisfied` can evaluate over those names."""
    for node in ast.walk(_parse(constraint)):
        if isinstance(node, ast.Name) and node.id not in names:
            raise ConstraintError(f"{node.id} in {constraint!r} is not a tunable")
        if not isinstance(node, _ALLOWED):
            raise ConstraintError(f"{type(node).__name__} is not allowed in {constraint!r}")


def satisfied(constraint: str, values: Mapping[str, ParamValue]) -> bool:
    """Whether the constraint holds. A division by zero or a comparison of unlike types means that it does not.

    Raises ConstraintError for anything that `check` refuses.
    """
    try:
        return bool(_evaluate(_parse(constraint), values))
    except (ArithmeticError, TypeError):
        return False


_ALLOWED = (
    ast.BoolOp,
    ast.boolop,
    ast.BinOp,
    *ARITHMETIC,
    ast.UnaryOp,
    *UNARY,
    ast.Compare,
    *COMPARISONS,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Tuple,
)


def _parse(constraint: str) -> ast.expr:
    if len(constraint) > MAX_LENGTH:
        raise ConstraintError(f"longer than {MAX_LENGTH} characters")
    try:
        return ast.parse(constraint.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConstraintError(f"{constraint!r} does not parse") from error


def _evaluate(node: ast.expr, values: Mapping[str, ParamValue]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Tuple(elts=items):
            return tuple(_evaluate(item, values) for item in items)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return UNARY[type(op)](_evaluate(operand, values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](_number(left, values), _number(right, values))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_evaluate(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_evaluate(part, values) for part in parts)
        case ast.Compare():
            return _compare(node, values)
    raise ConstraintError(f"{type(node).__name__} is not allowed in a constraint")


def _number(node: ast.expr, values: Mapping[str, ParamValue]) -> int | float:
    """An operand of arithmetic. Strings and tuples are kept out: `"x" * 10**9` would be a way to eat memory."""
    value = _evaluate(node, values)
    if not isinstance(value, int | float):
        raise TypeError("arithmetic is for numbers")
    return value


def _compare(node: ast.Compare, values: Mapping[str, ParamValue]) -> bool:
    left = _evaluate(node.left, values)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(comparator, values)
        if type(op) not in COMPARISONS:
            raise ConstraintError(f"{type(op).__name__} is not allowed in a constraint")
        if not COMPARISONS[type(op)](left, right):
            return False
        left = right
    return True
