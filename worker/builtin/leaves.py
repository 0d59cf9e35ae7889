"""Leaves of a graph as Python expressions: an input or parameter, and the reference's own views of it.

A recipe does not re-implement `x.chunk(2, -1)[0].transpose(1, 2)`; it evaluates that text in forward and hands the
kernel the view. Sizes that were burnt into the trace are turned back into `x.shape[d]` where that holds in every
workload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from worker.builtin.expressions import Kind, Number, Operand, Unmatched, literal
from worker.builtin.trace import Arg, Graph, Node, Ref

Pieces = tuple[str | Number, ...]


class Leaves:
    """Resolves nodes of one graph to operands, and constants to numbers that may depend on shapes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def operand(self, index: int) -> Operand:
        """The operand that a node is. Raises Unmatched when the node computes something."""
        pieces, leaf, is_view = self._pieces(index)
        node = self.graph.nodes[index]
        # The text carries no cast, so the kernel reads the leaf's own type.
        return Operand(
            name=leaf.name,
            source="input" if leaf.op == "input" else "parameter",
            pieces=pieces,
            kind=dtype_kind(leaf.dtype),
            rank=len(node.shape),
            is_view=is_view,
        )

    def is_leaf(self, index: int) -> bool:
        try:
            self._pieces(index)
        except Unmatched:
            return False
        return True

    def number(self, value: Arg) -> Number:
        """A float constant; the literal comes first, expressions of a shape follow."""
        if isinstance(value, bool | int | float):
            number = float(value)
            named = tuple(f"float({name})" for name, scalar in self.graph.scalars if scalar == number)
            return Number(number, (literal(number), *self._shape_expressions(number), *named))
        raise Unmatched(f"{value!r} is not a number")

    def count(self, extent: int, correction: float) -> Number:
        """The divisor of a variance: an extent less its correction, never below zero."""
        value = max(0.0, extent - correction)
        found = [
            f"max(0.0, {text}.shape[{dim}] - {correction!r})"
            for text, dim, n in self._extents()
            if n == extent and n > 1
        ]
        return Number(value, (*found, literal(value)))

    def size(self, value: int) -> Number:
        """An int taken from a shape where one matches; expressions come first, the literal last."""
        found = [f"{e}.shape[{d}]" for e, d, n in self._extents() if n == value and n > 1]
        return Number(float(value), (*found, repr(value)))

    def _extents(self) -> list[tuple[str, int, int]]:
        """(expression, dimension, extent) of inputs, then parameters; the last dimension is named -1, as it is used."""
        found = []
        for node in (*self.graph.inputs, *self.graph.parameters):
            text, rank = (node.name if node.op == "input" else attribute_path(node.name)), len(node.shape)
            found += [(text, -1 if d == rank - 1 else d, node.shape[d]) for d in range(rank)]
        return found

    def _shape_expressions(self, value: float) -> tuple[str, ...]:
        if not math.isfinite(value) or value == 0:
            return ()
        found = []
        for name, dim, extent in self._extents():
            if extent < 2:
                continue
            text = f"{name}.shape[{dim}]"
            forms = {
                f"float({text})": float(extent),
                f"1.0 / {text}": 1.0 / extent,
                f"1.0 / math.sqrt({text})": 1.0 / math.sqrt(extent),
                f"math.sqrt({text})": math.sqrt(extent),
            }
            found += [form for form, result in forms.items() if math.isclose(result, value, rel_tol=1e-12)]
        return tuple(found)

    def _pieces(self, index: int) -> tuple[Pieces, Node, bool]:
        node = self.graph.nodes[index]
        if node.op == "input":
            return (node.name,), node, False
        if node.op == "parameter":
            return (attribute_path(node.name),), node, False
        if node.op == "getitem":
            parent, item = node.args
            if isinstance(parent, Ref) and isinstance(item, int) and self.graph.nodes[parent.index].op in _SPLITS:
                pieces, leaf, _ = self._pieces(parent.index)
                return (*pieces, f"[{item}]"), leaf, True
            raise Unmatched("an item of something computed")
        view = _VIEWS.get(node.op)
        if view is None or not isinstance(node.args[0], Ref):
            raise Unmatched(f"{node.op} is not a view of a leaf")
        pieces, leaf, is_view = self._pieces(node.args[0].index)
        suffix = view(self, node)
        return (*pieces, *suffix), leaf, is_view or bool(suffix)


FLOATS = frozenset({"float", "float16", "bfloat16", "float32", "float64"})
"""The floating types that torch promotes (`float` is a Python number's). It promotes no float of 8 bits or fewer, and a
cast to one rounds to three bits of mantissa or two, which no recipe does."""


def dtype_kind(dtype: str) -> Kind:
    """float, int or bool. Raises Unmatched for complex and quantised types, 8-bit floats among them."""
    if dtype == "bool":
        return "bool"
    if dtype in FLOATS:
        return "float"
    if dtype.startswith(("int", "uint")):
        return "int"
    raise Unmatched(f"dtype {dtype} is not supported")


def attribute_path(key: str) -> str:
    """`layers.0.weight` as Python: `self.layers[0].weight`."""
    text = "self"
    for part in key.split("."):
        if part.isdigit():
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z_]\w*", part):
            text += f".{part}"
        else:
            raise Unmatched(f"the parameter name {key!r} cannot be written as an attribute")
    return text


def _ints(arg: Arg) -> tuple[int, ...]:
    items = arg if isinstance(arg, tuple) else (arg,)
    found = tuple(item for item in items if isinstance(item, int))
    if len(found) != len(items):
        raise Unmatched("a shape is computed from data")
    return found


def _sizes(leaves: Leaves, arg: Arg) -> Pieces:
    pieces: list[str | Number] = []
    for value in _ints(arg):
        pieces += [", " if pieces else "", "-1" if value == -1 else leaves.size(value)]
    return tuple(pieces)


def _reshape(leaves: Leaves, node: Node) -> Pieces:
    return (".reshape(", *_sizes(leaves, node.args[1]), ")")


def _expand(leaves: Leaves, node: Node) -> Pieces:
    """Programs broadcast by themselves, so an expand only needs to keep the rank."""
    source = leaves.graph.nodes[_ref(node.args[0])]
    missing = len(node.shape) - len(source.shape)
    return (f"[{'None, ' * missing}...]",) if missing else ()


def _ref(arg: Arg) -> int:
    if isinstance(arg, Ref):
        return arg.index
    raise Unmatched("expected a tensor")


def _method(name: str) -> Callable[[Leaves, Node], Pieces]:
    def suffix(_: Leaves, node: Node) -> Pieces:
        return (f".{name}({', '.join(repr(a) for a in node.args[1:])})",)

    return suffix


def _slice(leaves: Leaves, node: Node) -> Pieces:
    _, dim, start, stop, step = (*node.args, 1)[:5]
    source = leaves.graph.nodes[_ref(node.args[0])]
    if not isinstance(dim, int) or not isinstance(step, int):
        raise Unmatched("a slice computed from data")
    dim = dim % len(source.shape)
    extent = source.shape[dim]
    low, high = _bound(start, 0, extent), _bound(stop, extent, extent)
    if (low, high, step) == (0, extent, 1):
        return ()
    parts: Pieces = (*_fraction(leaves, low, extent), ":", *_fraction(leaves, high, extent))
    stride: Pieces = () if step == 1 else (f":{step}",)
    return ("[", ":, " * dim, *parts, *stride, "]")


def _bound(value: Arg, default: int, extent: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int):
        raise Unmatched("a slice computed from data")
    return max(0, min(extent, value + extent if value < 0 else value))


def _fraction(leaves: Leaves, value: int, extent: int) -> Pieces:
    """A slice bound as text: nothing at the ends, half of an extent where it is half, else a shape or the literal."""
    if value in (0, extent):
        return ()
    halves = [f"{e}.shape[{d}] // 2" for e, d, n in leaves._extents() if n == 2 * value == extent]
    size = leaves.size(value)
    return (Number(float(value), (*halves, *size.alternatives)),)


def _select(_: Leaves, node: Node) -> Pieces:
    dim, index = node.args[1], node.args[2]
    return (f".select({dim!r}, {index!r})",)


def _nothing(_: Leaves, __: Node) -> Pieces:
    return ()


def _cast(leaves: Leaves, node: Node) -> Pieces:
    """Kernels convert on load, so a cast to float costs nothing; any other change of kind is work."""
    source = dtype_kind(leaves.graph.nodes[_ref(node.args[0])].dtype)
    if dtype_kind(node.dtype) not in (source, "float"):
        raise Unmatched("a cast of a leaf to an integer type")
    return ()


_VIEWS: dict[str, Callable[[Leaves, Node], Pieces]] = {
    "aten.view.default": _reshape,
    "aten.reshape.default": _reshape,
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand,
    "aten.broadcast_to.default": _expand,
    "aten.transpose.int": _method("transpose"),
    "aten.swapaxes.default": _method("transpose"),
    "aten.permute.default": _method("permute"),
    "aten.movedim.int": _method("movedim"),
    "aten.unsqueeze.default": _method("unsqueeze"),
    "aten.squeeze.dim": _method("squeeze"),
    "aten.flatten.using_ints": _method("flatten"),
    "aten.t.default": _method("t"),
    "aten.mT.default": lambda _l, _n: (".mT",),
    "aten.numpy_T.default": lambda _l, _n: (".T",),
    "aten.adjoint.default": lambda _l, _n: (".mT",),
    "aten.chunk.default": _method("chunk"),
    "aten.split.Tensor": lambda leaves, node: (
        ".split(",
        leaves.size(_ints(node.args[1])[0]),
        f", {node.args[2]!r})",
    ),
    "aten.unbind.int": _method("unbind"),
    "aten.select.int": _select,
    "aten.slice.Tensor": _slice,
    "aten.detach.default": _nothing,
    "aten.alias.default": _nothing,
    "aten.contiguous.default": _nothing,
    "aten.clone.default": _nothing,
    "aten.to.dtype": _cast,
    "aten.to.dtype_layout": _cast,
    "aten.type_as.default": _cast,
    "aten._to_copy.default": _cast,
}
_SPLITS = frozenset({"aten.chunk.default", "aten.split.Tensor", "aten.unbind.int"})
