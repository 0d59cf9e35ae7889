"""A candidate's declared tunables: read them, and write a configuration back into the source.

A candidate declares, at module level and as literals,

    TUNABLES = {"BLOCK": [64, 128, 256], "WARPS": [1, 2, 4]}
    CONSTRAINTS = ["BLOCK * WARPS <= 512"]
    BLOCK = 128
    WARPS = 2

A configuration is applied by rewriting the values of those assignments, and not one character more. The source is only
parsed, never run.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from search import constraints
from search.types import ParamValue

MAX_VALUES = 64
MAX_TUNABLES = 16


class SpaceError(ValueError):
    """The declared tunables cannot be used.

    TUNABLES must be a literal dict from a name to a list of numbers, strings or booleans, each name assigned once at
    module level; CONSTRAINTS must be a literal list of expressions over those names.
    """


class UnknownTunable(ValueError):
    """The source has no single module-level assignment for that name. Only declared tunables can be set."""


@dataclass(frozen=True, slots=True)
class Space:
    """What may be varied. `defaults` is the configuration that the source has now; it need not be in the space."""

    values: Mapping[str, tuple[ParamValue, ...]]
    defaults: Mapping[str, ParamValue]
    constraints: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many configurations there are, before constraints."""
        return math.prod(len(choices) for choices in self.values.values())

    def allows(self, params: Mapping[str, ParamValue]) -> bool:
        """Whether the configuration names every tunable, with a declared value, and satisfies the constraints."""
        if params.keys() != self.values.keys():
            return False
        declared = all(same_value_in(params[name], choices) for name, choices in self.values.items())
        return declared and all(constraints.satisfied(constraint, params) for constraint in self.constraints)

    def configurations(self) -> Iterator[dict[str, ParamValue]]:
        """Every configuration that satisfies the constraints, in the order of declaration."""
        names = list(self.values)
        for combination in product(*self.values.values()):
            params = dict(zip(names, combination, strict=True))
            if all(constraints.satisfied(constraint, params) for constraint in self.constraints):
                yield params


def read_space(source: str) -> Space | None:
    """The candidate's space, or None where it declares none that can be used."""
    try:
        return parse_space(source)
    except SpaceError:
        return None


def parse_space(source: str) -> Space | None:
    """The candidate's space, or None where it declares none. Raises SpaceError where the declaration is unusable."""
    assignments = _module_assignments(source)
    if "TUNABLES" not in assignments:
        return None
    values = _choices(_literal(assignments, "TUNABLES"))
    defaults = {name: _default(assignments, name) for name in values}
    rules = _literal(assignments, "CONSTRAINTS") if "CONSTRAINTS" in assignments else []
    if not isinstance(rules, list | tuple) or not all(isinstance(rule, str) for rule in rules):
        raise SpaceError("CONSTRAINTS must be a list of strings")
    for rule in rules:
        try:
            constraints.check(rule, frozenset(values))
        except constraints.ConstraintError as error:
            raise SpaceError(f"CONSTRAINTS: {error}") from error
    return Space(values=values, defaults=defaults, constraints=tuple(rules))


def with_values(source: str, values: Mapping[str, ParamValue]) -> str:
    """The source with those module-level assignments set. Raises UnknownTunable for a name it does not assign once."""
    assignments = _module_assignments(source)
    edits: list[tuple[int, int, str]] = []
    lines = _line_starts(source)
    for name, value in values.items():
        expressions = assignments.get(name, [])
        if len(expressions) != 1:
            raise UnknownTunable(name)
        old = expressions[0]
        if old.end_lineno is None or old.end_col_offset is None:  # cannot be: ast.parse sets both
            raise UnknownTunable(name)
        start = lines[old.lineno - 1] + old.col_offset
        end = lines[old.end_lineno - 1] + old.end_col_offset
        edits.append((start, end, repr(value)))
    # Offsets of ast are in UTF-8 bytes. From the back, so that an edit does not move those before it.
    text = source.encode()
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new.encode() + text[end:]
    return text.decode()


def same_value_in(value: ParamValue, choices: tuple[ParamValue, ...]) -> bool:
    """Whether the value is among the choices; True is not 1 and 1 is not 1.0, since their sources differ."""
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _module_assignments(source: str) -> dict[str, list[ast.expr]]:
    """The values assigned to each plain name at module level."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpaceError("the source does not parse") from error
    assignments: dict[str, list[ast.expr]] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assignments.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                assignments.setdefault(name, []).append(value)
    return assignments


def _literal(assignments: Mapping[str, list[ast.expr]], name: str) -> object:
    expressions = assignments.get(name, [])
    if len(expressions) != 1:
        raise SpaceError(f"{name} must be assigned once at module level")
    try:
        return ast.literal_eval(expressions[0])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise SpaceError(f"{name} must be a literal") from error


def _choices(declared: object) -> dict[str, tuple[ParamValue, ...]]:
    if not isinstance(declared, dict) or not 0 < len(declared) <= MAX_TUNABLES:
        raise SpaceError(f"TUNABLES must be a dict of 1 to {MAX_TUNABLES} names")
    choices: dict[str, tuple[ParamValue, ...]] = {}
    for name, values in declared.items():
        if not isinstance(name, str) or not isinstance(values, list | tuple) or not 0 < len(values) <= MAX_VALUES:
            raise SpaceError(f"TUNABLES[{name!r}] must be a list of 1 to {MAX_VALUES} values")
        if not all(_is_value(value) for value in values):
            raise SpaceError(f"TUNABLES[{name!r}] must hold numbers, strings or booleans")
        distinct: tuple[ParamValue, ...] = ()
        for value in values:
            distinct = distinct if same_value_in(value, distinct) else (*distinct, value)
        choices[name] = distinct
    return choices


def _default(assignments: Mapping[str, list[ast.expr]], name: str) -> ParamValue:
    value = _literal(assignments, name)
    if isinstance(value, bool | int | float | str):
        return value
    raise SpaceError(f"{name} must be a number, a string or a boolean")


def _is_value(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)  # repr(inf) is a name, not a literal
    return isinstance(value, bool | int | str)


def _line_starts(source: str) -> list[int]:
    """The offset in UTF-8 bytes at which each line of the source starts, for lines as Python's parser counts them."""
    data = source.encode()
    starts = [0]
    for index, byte in enumerate(data):
        bare_return = byte == 0x0D and data[index + 1 : index + 2] != b"\n"
        if byte == 0x0A or bare_return:
            starts.append(index + 1)
    return starts
