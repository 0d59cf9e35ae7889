"""Lower a traced graph to a Program: elementwise steps and row reductions over one domain.

Composite ops are expanded to the small vocabulary of `expressions.POINTWISE_OPS`, casts between float types are dropped
(recipes compute in float32 and round once, which is at least as accurate), and equal steps are shared. What does not
fit raises Unmatched: views of computed values, scans, matrix products, data-dependent shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.builtin.expressions import (
    FULL_REDUCTIONS,
    TRUTH_OPS,
    Level,
    Number,
    Operand,
    Output,
    Program,
    Step,
    Unmatched,
)
from worker.builtin.leaves import Leaves, dtype_kind
from worker.builtin.trace import Arg, Graph, Node, Ref

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A lowered value: its step and the shape torch gives it. `kept` says whether a row value still has its reduced
    dims."""

    step: int
    shape: Shape
    level: Level
    kept: bool = True


Item = Value | Number


class Lowering:
    """Builds one Program. `supplied` maps graph nodes to operands made elsewhere (a matmul's accumulator, say)."""

    def __init__(self, graph: Graph, supplied: dict[int, Operand] | None = None) -> None:
        self.graph = graph
        self.leaves = Leaves(graph)
        self.supplied = supplied or {}
        self.steps: list[Step] = []
        self.shapes: list[Shape] = []
        self.operands: list[Operand] = []
        self.operand_shapes: list[Shape] = []
        self.values: dict[int, Value] = {}
        self.reduced: list[Shape] = []
        self.row_dims = 0

    # -- building blocks used by the handlers ---------------------------------------------------------------------

    def emit(self, op: str, *args: Item) -> Value:
        """Append an elementwise step (or find an equal one)."""
        if op == "mul" and args[0] == args[1]:
            op, args = "square", args[:1]
        prepared = [self._as_float(op, a) for a in args]
        values = [a for a in prepared if isinstance(a, Value)]
        if not values:
            raise Unmatched("an expression of constants only")
        level, kept = _combine(values)
        shape = broadcast(tuple(v.shape for v in values))
        return self._append(op, prepared, level, shape, kept)

    def reduce(self, op: str, value: Value, dims: Sequence[int], keepdim: bool) -> Value:
        """Append a reduction over trailing dimensions."""
        if value.level != "element":
            return self._reduce_rows(op, value, dims)
        rank = len(value.shape)
        count = len(dims)
        if sorted(d % rank for d in dims) != list(range(rank - count, rank)):
            raise Unmatched("a reduction over leading dimensions")
        if count == rank and not keepdim and rank > 1:
            return self._append(op.replace("row_", "all_"), [value], "scalar", (), True)
        if self.row_dims not in (0, count):
            raise Unmatched("reductions over different dimensions")
        self.row_dims = count
        self.reduced.append(value.shape)
        head = value.shape[: rank - count]
        return self._append(op, [value], "row", head + (1,) * count if keepdim else head, keepdim)

    def _reduce_rows(self, op: str, value: Value, dims: Sequence[int]) -> Value:
        if value.level == "row" and len(dims) == len(value.shape) and op in ("row_sum", "row_mean"):
            return self._append(op.replace("row_", "all_"), [value], "scalar", (), True)
        raise Unmatched("a reduction of something already reduced")

    def _as_float(self, op: str, item: Item) -> Item:
        if isinstance(item, Value) and self.steps[item.step].truth and op not in ("and", "or", "not", "where"):
            return self._append("bool_to_float", [item], item.level, item.shape, item.kept)
        return item

    def _append(self, op: str, args: Sequence[Item], level: Level, shape: Shape, kept: bool) -> Value:
        refs = tuple(a.step if isinstance(a, Value) else a for a in args)
        return Value(self._intern(Step(op, refs, level, op in TRUTH_OPS), shape), shape, level, kept)

    def _intern(self, step: Step, shape: Shape) -> int:
        if step in self.steps:
            return self.steps.index(step)
        self.steps.append(step)
        self.shapes.append(shape)
        return len(self.steps) - 1

    # -- walking the graph ----------------------------------------------------------------------------------------

    def item(self, arg: Arg) -> Item:
        """A handler's argument: a lowered value, or a constant."""
        return self.value(arg.index) if isinstance(arg, Ref) else self.leaves.number(arg)

    def value(self, index: int) -> Value:
        if index not in self.values:
            self.values[index] = self._lower(index)
        return self.values[index]

    def _lower(self, index: int) -> Value:
        if index in self.supplied:
            return self._load(self.supplied[index], self.graph.nodes[index].shape)
        if self.leaves.is_leaf(index):
            return self._load(self.leaves.operand(index), self.graph.nodes[index].shape)
        node = self.graph.nodes[index]
        handler = HANDLERS.get(node.op.removeprefix("aten.").split(".")[0])
        if handler is None:
            raise Unmatched(f"{node.op} is neither elementwise nor a reduction over rows")
        result = handler(self, node)
        if isinstance(result, Number):
            raise Unmatched("a constant tensor")
        return result

    def _load(self, operand: Operand, shape: Shape) -> Value:
        if operand not in self.operands:
            self.operands.append(operand)
            self.operand_shapes.append(shape)
        step = Step("load", (self.operands.index(operand),), "element", operand.kind == "bool")
        return Value(self._intern(step, shape), shape, "element")

    def channel_vector(self, index: int, rank: int) -> Value:
        """A leaf of one dimension, aligned with dimension 1 of a domain of `rank` dimensions."""
        leaf = self.leaves.operand(index)
        extent = self.graph.nodes[index].shape[0]
        if leaf.rank != 1 or rank < 2:
            raise Unmatched("a channel vector of another rank")
        tail = (1,) * (rank - 2)
        pieces = (*leaf.pieces, f".reshape({', '.join(('-1', *map(str, tail)))})") if tail else leaf.pieces
        operand = Operand(leaf.name, leaf.source, pieces, leaf.kind, rank - 1, leaf.is_view)
        return self._load(operand, (extent, *tail))

    def program(self, outputs: Sequence[int] | None = None) -> Program:
        """Lower the graph's outputs (or the given nodes) and close the Program. Raises Unmatched."""
        wanted = self.graph.outputs if outputs is None else tuple(outputs)
        values = [self.value(index) for index in wanted]
        domain = broadcast(tuple(self.operand_shapes))
        for shape in self.reduced:
            if shape[len(shape) - self.row_dims :] != domain[len(domain) - self.row_dims :]:
                raise Unmatched("a reduction of something smaller than the domain")
        self._check_full_reductions(domain)
        if any(v.level == "element" and v.shape != domain for v in values):
            raise Unmatched("an output smaller than the domain")
        results = tuple(self._output(v, n) for v, n in zip(values, wanted, strict=True))
        operands = tuple(
            Operand(o.name, o.source, o.pieces, o.kind, o.rank, o.is_view, broadcast_flags(s, domain))
            for o, s in zip(self.operands, self.operand_shapes, strict=True)
        )
        returns_tuple = self.graph.returns_tuple and outputs is None
        return _prune(Program(operands, tuple(self.steps), results, len(domain), self.row_dims or 1, returns_tuple))

    def _check_full_reductions(self, domain: Shape) -> None:
        for step in self.steps:
            if step.op in FULL_REDUCTIONS:
                source = step.args[0]
                assert isinstance(source, int)
                over_rows = self.steps[source].level == "row"
                covered = domain[: len(domain) - self.row_dims] if over_rows else domain
                if math.prod(self.shapes[source]) != math.prod(covered):
                    raise Unmatched("a reduction of something smaller than the domain")

    def _output(self, value: Value, index: int) -> Output:
        truth = self.steps[value.step].truth
        kind = dtype_kind(self.graph.nodes[index].dtype)
        if kind == "int" or (kind == "bool") != truth:
            raise Unmatched("an integer output")
        return Output(value.step, value.level == "row" and value.kept, kind)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """torch's broadcasting of known shapes."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    extents = [[n for n in column if n != 1] for column in zip(*padded, strict=True)]
    if any(len(set(column)) > 1 for column in extents):
        raise Unmatched("shapes that do not broadcast")
    return tuple(column[0] if column else 1 for column in extents)


def broadcast_flags(shape: Shape, domain: Shape) -> tuple[bool | None, ...]:
    """See `Operand.broadcast`."""
    missing = len(domain) - len(shape)
    present = (None if n == 1 == d else n == 1 for n, d in zip(shape, domain[missing:], strict=True))
    return (True,) * missing + tuple(present)


def _combine(values: Sequence[Value]) -> tuple[Level, bool]:
    levels = {v.level for v in values}
    rows = [v for v in values if v.level == "row"]
    elements = [v for v in values if v.level == "element" and v.shape]
    if "scalar" in levels and (rows or elements):
        raise Unmatched("a full reduction used elementwise")
    if not rows:
        return ("element" if elements or "scalar" not in levels else "scalar"), True
    if len({v.kept for v in rows}) > 1 or (elements and not rows[0].kept):
        raise Unmatched("row values that are aligned differently")
    return ("element" if elements else "row"), rows[0].kept


def _prune(program: Program) -> Program:
    """Drop steps and operands that no output needs; renumber."""
    live: set[int] = set()
    pending = [o.step for o in program.outputs]
    while pending:
        index = pending.pop()
        if index not in live:
            live.add(index)
            step = program.steps[index]
            pending += [a for a in step.args if isinstance(a, int)] if step.op != "load" else []
    order = sorted(live)
    place = {old: new for new, old in enumerate(order)}
    used = sorted({_operand_of(program.steps[i]) for i in order if program.steps[i].op == "load"})
    steps = []
    for index in order:
        step = program.steps[index]
        if step.op == "load":
            args: tuple[int | Number, ...] = (used.index(_operand_of(step)),)
        else:
            args = tuple(place[a] if isinstance(a, int) else a for a in step.args)
        steps.append(Step(step.op, args, step.level, step.truth))
    operands = tuple(program.operands[i] for i in used)
    outputs = tuple(Output(place[o.step], o.keepdim, o.kind) for o in program.outputs)
    return Program(operands, tuple(steps), outputs, program.rank, program.row_dims, program.returns_tuple)


def _operand_of(step: Step) -> int:
    index = step.args[0]
    assert isinstance(index, int)
    return index


Handler = Callable[[Lowering, Node], Item]
HANDLERS: dict[str, Handler] = {}


def register(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for aten ops of these base names (overload left out)."""

    def add(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return add


def lower(graph: Graph) -> Program:
    """Lower a whole graph. Raises Unmatched when it holds anything that is not elementwise or a reduction over rows."""
    return Lowering(graph).program()
