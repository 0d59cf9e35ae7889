"""Recognise the families made of elementwise steps and reductions over rows, by the shape of their Program.

Both the composite op (`F.layer_norm`) and the same formula written by hand lower to the same steps, so one pattern
serves.
"""

from __future__ import annotations

from typing import Literal

from worker.builtin.expressions import FULL_REDUCTIONS, ROW_REDUCTIONS, Number, Operand, Program, Unmatched, constant
from worker.builtin.families import (
    ColumnReduction,
    FullReduction,
    LayerNorm,
    Pointwise,
    RmsNorm,
    RowReduction,
    Rowwise,
    Softmax,
)
from worker.builtin.leaves import Leaves
from worker.builtin.lowering import lower
from worker.builtin.trace import Graph, Node, Ref


class Steps:
    """Reads a Program from its outputs backwards. Every method raises Unmatched when the step is another."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def op(self, index: int) -> str:
        return self.program.steps[index].op

    def take(self, index: int, *ops: str) -> tuple[int | Number, ...]:
        """The arguments of a step that must be one of `ops`."""
        step = self.program.steps[index]
        if step.op not in ops:
            raise Unmatched(f"{step.op} where {' or '.join(ops)} was expected")
        return step.args

    def one(self, index: int, *ops: str) -> int:
        """The single argument of a unary step."""
        return step_index(self.take(index, *ops)[0])

    def load(self, index: int) -> Operand:
        """The whole-domain float operand that a step loads."""
        operand = self.program.operands[self.one(index, "load")]
        if any(operand.broadcast) or operand.kind != "float" or operand.rank != self.program.rank:
            raise Unmatched("a broadcast operand")
        return operand

    def row_vector(self, index: int) -> Operand:
        """An operand with one value per position of a row (a norm's weight or bias)."""
        operand = self.program.operands[self.one(index, "load")]
        dims = self.program.row_dims
        if operand.rank != dims or any(operand.broadcast[-dims:]) or operand.kind != "float":
            raise Unmatched("not a vector along the row")
        return operand

    def factors(self, index: int) -> tuple[list[int], list[Number]]:
        """A product's factors, divisions by a square root turned into factors of their own."""
        step = self.program.steps[index]
        if step.op != "mul":
            return [index], []
        found: tuple[list[int], list[Number]] = ([], [])
        for arg in step.args:
            if isinstance(arg, Number):
                found[1].append(arg)
            else:
                more = self.factors(arg)
                found[0].extend(more[0])
                found[1].extend(more[1])
        return found

    def spread(self, index: int) -> tuple[int, Number]:
        """`rsqrt(a + eps)` in any spelling: (a, eps)."""
        if self.op(index) == "reciprocal":
            inner = self.one(self.one(index, "reciprocal"), "sqrt")
        else:
            inner = self.one(index, "rsqrt")
        return self.plus_number(inner)

    def plus_number(self, index: int) -> tuple[int, Number]:
        left, right = self.take(index, "add")
        if isinstance(left, Number):
            left, right = right, left
        if isinstance(right, Number):
            return step_index(left), right
        raise Unmatched("a sum of two tensors")


def step_index(arg: int | Number) -> int:
    if isinstance(arg, Number):
        raise Unmatched("a constant where a tensor was expected")
    return arg


def pointwise(graph: Graph) -> Pointwise:
    program = lower(graph)
    if program.has(ROW_REDUCTIONS | FULL_REDUCTIONS) or len(program.steps) == len(program.operands):
        raise Unmatched("not elementwise")
    return Pointwise(program)


def rowwise(graph: Graph) -> Rowwise:
    program = lower(graph)
    if not program.has(ROW_REDUCTIONS) or program.has(FULL_REDUCTIONS):
        raise Unmatched("no reduction over rows")
    return Rowwise(program)


def full_reduction(graph: Graph) -> FullReduction:
    program = lower(graph)
    if sum(1 for step in program.steps if step.op in FULL_REDUCTIONS) != 1 or len(program.outputs) != 1:
        raise Unmatched("not one full reduction")
    return FullReduction(program)


def softmax(graph: Graph) -> Softmax:
    program = lower(graph)
    steps = Steps(program)
    out = _single(program)
    log = steps.op(out) == "sub"
    if log:
        shifted, total = (step_index(a) for a in steps.take(out, "sub"))
        powers = steps.one(steps.one(total, "log"), "row_sum")
    else:
        powers, total = (step_index(a) for a in steps.take(out, "div"))
        if steps.one(total, "row_sum") != powers:
            raise Unmatched("not a softmax")
        shifted = steps.one(powers, "exp")
    value, top = (step_index(a) for a in steps.take(shifted, "sub"))
    if steps.one(powers, "exp") != shifted or steps.one(top, "row_max") != value:
        raise Unmatched("not a softmax")
    x, scale = _scaled(steps, value)
    return Softmax(x, log, scale, program.row_dims)


def _scaled(steps: Steps, index: int) -> tuple[Operand, Number]:
    if steps.op(index) == "load":
        return steps.load(index), constant(1.0)
    found, numbers = steps.factors(index)
    if len(found) != 1 or len(numbers) != 1:
        raise Unmatched("more than a scale before the softmax")
    return steps.load(found[0]), numbers[0]


def _single(program: Program) -> int:
    if len(program.outputs) != 1 or program.returns_tuple:
        raise Unmatched("several outputs")
    return program.outputs[0].step


def _residual(steps: Steps, index: int) -> tuple[Operand, Operand | None]:
    """A normalised value: an input, or the sum of two."""
    if steps.op(index) == "load":
        return steps.load(index), None
    left, right = steps.take(index, "add")
    return steps.load(step_index(left)), steps.load(step_index(right))


def _norm_outputs(program: Program) -> tuple[int, int | None]:
    """(the normalised output, the second output if there is one)."""
    steps = [output.step for output in program.outputs]
    if program.returns_tuple != (len(steps) == 2) or len(steps) > 2:
        raise Unmatched("not the outputs of a norm")
    return steps[0], (steps[1] if len(steps) == 2 else None)


def layer_norm(graph: Graph) -> LayerNorm:
    program = lower(graph)
    steps = Steps(program)
    out, second = _norm_outputs(program)
    scaled, bias = _strip_bias(steps, out)
    centred, weight, (variance, eps) = _norm_factors(steps, scaled)
    value, mean = (step_index(a) for a in steps.take(centred, "sub"))
    squares = steps.one(variance, "row_mean")
    if steps.one(squares, "square") != centred or steps.one(mean, "row_mean") != value:
        raise Unmatched("not a layer norm")
    if second not in (None, value):
        raise Unmatched("the second output is not the sum")
    x, residual = _residual(steps, value)
    return LayerNorm(x, residual, weight, bias, eps, program.row_dims, second is not None)


def _strip_bias(steps: Steps, out: int) -> tuple[int, Operand | None]:
    if steps.op(out) != "add":
        return out, None
    left, right = (step_index(a) for a in steps.take(out, "add"))
    for bias, rest in ((right, left), (left, right)):
        if steps.op(bias) == "load":
            return rest, steps.row_vector(bias)
    raise Unmatched("not a norm with a bias")


def _norm_factors(steps: Steps, index: int) -> tuple[int, Operand | None, tuple[int, Number]]:
    """Split `value * spread * weight`: (value step, weight, (mean step, eps))."""
    if steps.op(index) == "div":
        value, root = (step_index(a) for a in steps.take(index, "div"))
        return value, None, steps.plus_number(steps.one(root, "sqrt"))
    found, numbers = steps.factors(index)
    if numbers or not 2 <= len(found) <= 3:
        if len(found) == 1 or numbers:
            raise Unmatched("not a norm")
        raise Unmatched("too many factors for a norm")
    if any(steps.op(f) == "div" for f in found):
        return _divided(steps, found)
    spreads = [f for f in found if steps.op(f) in ("rsqrt", "reciprocal")]
    rest = [f for f in found if f not in spreads]
    if len(spreads) != 1 or not rest:
        raise Unmatched("no spread among the factors")
    value, weight = _value_and_weight(steps, rest)
    return value, weight, steps.spread(spreads[0])


def _divided(steps: Steps, found: list[int]) -> tuple[int, Operand | None, tuple[int, Number]]:
    quotient = next(f for f in found if steps.op(f) == "div")
    value, root = (step_index(a) for a in steps.take(quotient, "div"))
    others = [f for f in found if f != quotient]
    if len(others) != 1:
        raise Unmatched("too many factors for a norm")
    return value, steps.row_vector(others[0]), steps.plus_number(steps.one(root, "sqrt"))


def _value_and_weight(steps: Steps, rest: list[int]) -> tuple[int, Operand | None]:
    if len(rest) == 1:
        return rest[0], None
    for weight, value in ((rest[1], rest[0]), (rest[0], rest[1])):
        if steps.op(weight) == "load":
            try:
                return value, steps.row_vector(weight)
            except Unmatched:
                continue
    raise Unmatched("no weight along the row")


def rms_norm(graph: Graph) -> RmsNorm:
    program = lower(graph)
    steps = Steps(program)
    out, second = _norm_outputs(program)
    index, offset_weight = _offset_weight(steps, out)
    value, weight, (mean, eps) = _norm_factors(steps, index)
    if steps.one(steps.one(mean, "row_mean"), "square") != value:
        raise Unmatched("not an RMS norm")
    if second not in (None, value) or (weight and offset_weight):
        raise Unmatched("not an RMS norm")
    x, residual = _residual(steps, value)
    offset = 1.0 if offset_weight else 0.0
    return RmsNorm(x, residual, offset_weight or weight, offset, eps, program.row_dims, second is not None)


def _offset_weight(steps: Steps, out: int) -> tuple[int, Operand | None]:
    """Strip a factor `(1 + weight)`, the last thing applied."""
    if steps.op(out) != "mul":
        return out, None
    args = steps.take(out, "mul")
    for place, arg in enumerate(args):
        if isinstance(arg, Number) or steps.op(arg) != "add":
            continue
        try:
            load, one = steps.plus_number(arg)
            weight = steps.row_vector(load)
        except Unmatched:
            continue
        if one.value == 1.0:
            return step_index(args[1 - place]), weight
    return out, None


Op = Literal["sum", "mean", "max", "min", "logsumexp"]
_REDUCTIONS: dict[str, Op] = {
    "aten.sum.dim_IntList": "sum", "aten.mean.dim": "mean", "aten.amax.default": "max", "aten.amin.default": "min",
    "aten.max.dim": "max", "aten.min.dim": "min", "aten.logsumexp.default": "logsumexp",
}  # fmt: skip


def _reduction_node(graph: Graph) -> tuple[Op, Operand, tuple[int, ...], bool]:
    """A forward that is one reduction of one leaf: (op, x, reduced dimensions from the right, keepdim)."""
    node = _only_output(graph)
    if node.op == "getitem" and node.args[1] == 0 and isinstance(node.args[0], Ref):
        node = graph.nodes[node.args[0].index]
    op = _REDUCTIONS.get(node.op)
    if op is None or not isinstance(node.args[0], Ref) or node.kwarg("dtype") is not None:
        raise Unmatched("not a reduction")
    x = Leaves(graph).operand(node.args[0].index)
    if x.kind != "float":
        raise Unmatched("a reduction of integers")
    dims = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    places = tuple(sorted(d if d < 0 else d - x.rank for d in dims if isinstance(d, int)))
    return op, x, places, node.args[2] is True


def _only_output(graph: Graph) -> Node:
    if len(graph.outputs) != 1 or graph.returns_tuple:
        raise Unmatched("several outputs")
    return graph.nodes[graph.outputs[0]]


def row_reduction(graph: Graph) -> RowReduction:
    op, x, dims, keepdim = _reduction_node(graph)
    if not dims or dims != tuple(range(-len(dims), 0)):
        raise Unmatched("not over trailing dimensions")
    return RowReduction(x, op, keepdim, len(dims))


def column_reduction(graph: Graph) -> ColumnReduction:
    op, x, dims, keepdim = _reduction_node(graph)
    if len(dims) != 1 or dims[0] == -1 or op == "logsumexp":
        raise Unmatched("not over one leading dimension")
    return ColumnReduction(x, op, dims[0], keepdim)
