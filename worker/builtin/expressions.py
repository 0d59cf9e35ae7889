"""What a recipe is told: operands, numbers that may depend on a shape, and language-neutral expression programs.

Nothing here knows C++ or Triton. A recipe walks `Program.steps` in order and prints one statement a step; Python-side
text (`Operand.text`, `Number.text`) is an expression valid inside `ModelNew.forward`, where the reference's argument
names and `self` are in scope.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


class Unmatched(Exception):
    """The graph is not of the family that was tried."""


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of the reference. `value` is its value in the first workload; `alternatives` are Python expressions
    that
    give it in *every* workload traced so far, best first: the literal, or one that reads a shape (`1.0 /
    math.sqrt(q.shape[-1])`).
    """

    value: float
    alternatives: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.alternatives[0]

    @property
    def is_literal(self) -> bool:
        """False when the number must be computed at run time from a shape and passed to the kernel."""
        return self.text == literal(self.value)


def literal(value: float) -> str:
    """A Python literal of a number, also for the values that `repr` cannot round-trip."""
    if value != value:
        return "math.nan"
    if value in (float("inf"), float("-inf")):
        return "math.inf" if value > 0 else "-math.inf"
    return repr(value)


def constant(value: float) -> Number:
    """A number that depends on nothing."""
    return Number(value, (literal(value),))


Kind = Literal["float", "int", "bool"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel reads.

    - `name`: the forward argument or the state dict key it comes from; `source`: `input` or `parameter`.
    - `pieces`: the Python expression that yields it in forward, views of the reference included (`x.chunk(2, -1)[0]`);
      use `.text`. It may be non-contiguous: call `.contiguous()` or use its strides.
    - `kind`: float, int or bool (the precise dtype may differ between workloads; bool masks are 1 byte).
    - `rank`: dimensions of the expression's value. `is_view`: false when the expression is the bare leaf.
    - `broadcast`: only inside a Program: one flag per dimension of the program's domain, true where the operand
      (aligned to the right, as torch broadcasts) has extent 1 or no dimension although the domain's is larger; None
      where both were 1 in every workload, so that nobody can tell (treat it as false). Empty elsewhere.
    """

    name: str
    source: Literal["input", "parameter"]
    pieces: tuple[str | Number, ...]
    kind: Kind
    rank: int
    is_view: bool = False
    broadcast: tuple[bool | None, ...] = ()

    @property
    def text(self) -> str:
        return "".join(piece if isinstance(piece, str) else piece.text for piece in self.pieces)


# The whole vocabulary of a Program, with arity. Compare and logic steps give truth values (usable by `where`, `and`,
# `or`, `not`, and by arithmetic as 0/1 after `bool_to_float`). maximum/minimum propagate NaN, as torch does.
POINTWISE_OPS: dict[str, int] = {
    "load": 1,
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "abs": 1, "reciprocal": 1, "sqrt": 1, "rsqrt": 1, "square": 1,
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log1p": 1, "sigmoid": 1, "tanh": 1, "erf": 1, "sin": 1,
    "cos": 1,
    "pow": 2, "maximum": 2, "minimum": 2, "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "sign": 1,
    "lt": 2, "le": 2, "gt": 2, "ge": 2, "eq": 2, "ne": 2, "and": 2, "or": 2, "not": 1, "bool_to_float": 1, "where": 3,
}  # fmt: skip
ROW_REDUCTIONS = frozenset({"row_sum", "row_mean", "row_max", "row_min"})
FULL_REDUCTIONS = frozenset({"all_sum", "all_mean"})
TRUTH_OPS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"})

Level = Literal["element", "row", "scalar"]


@dataclass(frozen=True, slots=True)
class Step:
    """One value: `op` applied to earlier steps (ints index `Program.steps`) and constants (Number).

    `load` has one int argument, an index into `Program.operands`. `level` is `element` for a value per element of the
    domain, `row` for one per row (the last dimension reduced away), `scalar` for one in all.
    `truth` marks values that are true/false.
    """

    op: str
    args: tuple[int | Number, ...]
    level: Level = "element"
    truth: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """A step that is returned. `keepdim` matters for row level only: whether the reduced dimension stays, with
    extent 1.
    `kind` is the dtype kind of the result (bool for a comparison)."""

    step: int
    keepdim: bool = False
    kind: Kind = "float"


@dataclass(frozen=True, slots=True)
class Program:
    """A DAG of elementwise steps and reductions over one domain (the broadcast shape of all operands).

    `rank` is the domain's rank; a row is its last `row_dims` dimensions taken together. `outputs` are in the
    reference's order; `returns_tuple` when forward returns a tuple. Element outputs have the domain's shape, in
    contiguous layout.
    """

    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    rank: int
    row_dims: int = 1
    returns_tuple: bool = False

    def uses(self, index: int) -> int:
        """How many steps and outputs read a step."""
        inside = sum(
            1 for s in self.steps if s.op != "load" for a in s.args if not isinstance(a, Number) and a == index
        )
        return inside + sum(1 for o in self.outputs if o.step == index)

    def has(self, ops: frozenset[str]) -> bool:
        return any(step.op in ops for step in self.steps)

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers that must be passed at run time, without repeats, in order of appearance."""
        found = [a for s in self.steps for a in s.args if isinstance(a, Number) and not a.is_literal]
        return tuple(dict.fromkeys(found))


def merge(first: Any, second: Any) -> Any:
    """What two workloads' descriptions have in common. Raises Unmatched when they differ in more than Numbers.

    A Number keeps the alternatives that hold in both, the literal only if the values agree.
    """
    if isinstance(first, Number) and isinstance(second, Number):
        common = tuple(a for a in first.alternatives if a in second.alternatives)
        if not common:
            raise Unmatched(f"a constant is {first.value} in one workload and {second.value} in another")
        return Number(first.value, common)
    if type(first) is not type(second):
        raise Unmatched("the workloads trace to different graphs")
    if isinstance(first, Operand) and isinstance(second, Operand):
        return _merge_operands(first, second)
    if isinstance(first, tuple):
        if len(first) != len(second):
            raise Unmatched("the workloads trace to different graphs")
        return tuple(merge(a, b) for a, b in zip(first, second, strict=True))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return _merge_fields(first, second, [field.name for field in dataclasses.fields(first)])
    if first != second:
        raise Unmatched(f"{first!r} in one workload, {second!r} in another")
    return first


def _merge_fields(first: Any, second: Any, names: Sequence[str]) -> Any:
    return dataclasses.replace(first, **{n: merge(getattr(first, n), getattr(second, n)) for n in names})


def _merge_operands(first: Operand, second: Operand) -> Operand:
    names = [field.name for field in dataclasses.fields(first) if field.name != "broadcast"]
    merged: Operand = _merge_fields(first, second, names)
    if len(first.broadcast) != len(second.broadcast):
        raise Unmatched("an operand of another rank")
    pairs = zip(first.broadcast, second.broadcast, strict=True)
    flags = tuple(b if a is None else a if b is None else merge(a, b) for a, b in pairs)
    return dataclasses.replace(merged, broadcast=flags)


def merge_all(items: Sequence[Any]) -> Any:
    """Merge the descriptions of all workloads. Raises Unmatched."""
    result = items[0]
    for item in items[1:]:
        result = merge(result, item)
    return result
