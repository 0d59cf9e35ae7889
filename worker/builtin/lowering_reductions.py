"""How aten's reductions, norms and losses are written in the vocabulary of a Program. Importing registers the handlers.

Variances are taken in two passes and softmax subtracts the row's maximum, as the reference implementations do.
"""

from __future__ import annotations

import math

from worker.builtin.expressions import Number, Unmatched, constant
from worker.builtin.lowering import HANDLERS, Item, Lowering, Value, register
from worker.builtin.lowering_ops import affine
from worker.builtin.trace import Arg, Node, Ref


def _reduced_dims(value: Arg, rank: int) -> tuple[int, ...]:
    """The reduced dimensions; all of them when the argument is absent or empty."""
    items = value if isinstance(value, tuple) else (value,)
    found = tuple(d % max(rank, 1) for d in items if isinstance(d, int))
    return found or tuple(range(rank))


def _value(lowering: Lowering, arg: Arg) -> Value:
    item = lowering.item(arg)
    if isinstance(item, Number):
        raise Unmatched("a reduction of a constant")
    return lowering.emit("bool_to_float", item) if lowering.steps[item.step].truth else item


def _reduction(name: str, op: str) -> None:
    def handler(lowering: Lowering, node: Node) -> Item:
        x = _value(lowering, node.args[0])
        dims = _reduced_dims(node.args[1] if len(node.args) > 1 else None, len(x.shape))
        return lowering.reduce(op, x, dims, len(node.args) > 2 and node.args[2] is True)

    HANDLERS[name] = handler


for _name, _op in {"sum": "row_sum", "mean": "row_mean", "amax": "row_max", "amin": "row_min"}.items():
    _reduction(_name, _op)


@register("max", "min")
def _max(lowering: Lowering, node: Node) -> Item:
    name = node.op.split(".")[0].removeprefix("aten.")
    if node.op.endswith(".other"):
        return lowering.emit(f"{name}imum", lowering.item(node.args[0]), lowering.item(node.args[1]))
    raise Unmatched("max over everything")


@register("getitem")
def _getitem(lowering: Lowering, node: Node) -> Item:
    """The values of `x.max(dim)`; its indices are not elementwise."""
    parent, item = node.args
    source = lowering.graph.nodes[parent.index] if isinstance(parent, Ref) else node
    if source.op not in ("aten.max.dim", "aten.min.dim") or item != 0:
        raise Unmatched(f"an item of {source.op}")
    x = _value(lowering, source.args[0])
    op = "row_max" if "max" in source.op else "row_min"
    return lowering.reduce(op, x, _reduced_dims(source.args[1], len(x.shape)), source.args[2] is True)


@register("unsqueeze", "squeeze", "view", "reshape", "expand", "expand_as")
def _reshape(lowering: Lowering, node: Node) -> Item:
    """Only the two reshapes that do not move data: a reduced dimension that comes back or goes, and an expand."""
    value = _value(lowering, node.args[0])
    if node.op.startswith("aten.expand") or value.shape == node.shape:
        return value
    if value.level == "row" and lowering.row_dims == 1:
        if node.shape == (*value.shape, 1) and not value.kept:
            return Value(value.step, node.shape, "row", True)
        if (*node.shape, 1) == value.shape and value.kept:
            return Value(value.step, node.shape, "row", False)
    raise Unmatched("a view of a computed value")


@register("softmax", "_softmax", "log_softmax", "_log_softmax", "special_softmax", "special_log_softmax")
def _softmax(lowering: Lowering, node: Node) -> Item:
    x = _value(lowering, node.args[0])
    dims = _reduced_dims(node.args[1], len(x.shape))
    shifted = lowering.emit("sub", x, lowering.reduce("row_max", x, dims, True))
    powers = lowering.emit("exp", shifted)
    total = lowering.reduce("row_sum", powers, dims, True)
    if "log" in node.op:
        return lowering.emit("sub", shifted, lowering.emit("log", total))
    return lowering.emit("div", powers, total)


@register("logsumexp")
def _logsumexp(lowering: Lowering, node: Node) -> Item:
    x = _value(lowering, node.args[0])
    dims, keepdim = _reduced_dims(node.args[1], len(x.shape)), node.args[2] is True
    top = lowering.reduce("row_max", x, dims, True)
    finite = lowering.emit(
        "where", lowering.emit("lt", lowering.emit("abs", top), constant(math.inf)), top, constant(0.0)
    )
    total = lowering.reduce("row_sum", lowering.emit("exp", lowering.emit("sub", x, finite)), dims, True)
    result = lowering.emit("add", lowering.emit("log", total), finite)
    return result if keepdim else Value(result.step, result.shape[: -len(dims)], result.level, False)


@register("var", "std")
def _variance(lowering: Lowering, node: Node) -> Item:
    x = _value(lowering, node.args[0])
    if node.op.endswith(".default"):
        raise Unmatched(f"{node.op} over everything")
    dims = _reduced_dims(node.args[1], len(x.shape))
    if node.op.endswith(".dim"):
        correction, keepdim = (1.0 if node.args[2] else 0.0), node.args[3] is True
    elif node.op.endswith(".correction"):
        given = node.kwarg("correction")
        correction, keepdim = (float(given) if isinstance(given, int | float) else 1.0), node.kwarg("keepdim") is True
    else:
        raise Unmatched(f"{node.op} is not known")
    centred = lowering.emit("sub", x, lowering.reduce("row_mean", x, dims, True))
    squares = lowering.emit("square", centred)
    if correction == 0.0:
        result = lowering.reduce("row_mean", squares, dims, True)
    else:
        count = lowering.leaves.count(math.prod(x.shape[d] for d in dims), correction)
        result = lowering.emit("div", lowering.reduce("row_sum", squares, dims, True), count)
    if "std" in node.op:
        result = lowering.emit("sqrt", result)
    return result if keepdim else Value(result.step, result.shape[: -len(dims)], result.level, False)


@register("layer_norm", "native_layer_norm")
def _layer_norm(lowering: Lowering, node: Node) -> Item:
    x, shape, weight, bias, eps = node.args[:5]
    value = _value(lowering, x)
    assert isinstance(shape, tuple)
    dims = tuple(range(len(value.shape) - len(shape), len(value.shape)))
    centred = lowering.emit("sub", value, lowering.reduce("row_mean", value, dims, True))
    spread = lowering.reduce("row_mean", lowering.emit("square", centred), dims, True)
    result = lowering.emit("mul", centred, lowering.emit("rsqrt", lowering.emit("add", spread, lowering.item(eps))))
    return affine(lowering, result, weight, bias, lowering.item)


@register("rms_norm")
def _rms_norm(lowering: Lowering, node: Node) -> Item:
    x, shape, weight, eps = node.args[:4]
    value = _value(lowering, x)
    assert isinstance(shape, tuple)
    dims = tuple(range(len(value.shape) - len(shape), len(value.shape)))
    mean = lowering.reduce("row_mean", lowering.emit("square", value), dims, True)
    floor = 1.1920928955078125e-07 if eps is None else eps  # torch takes the epsilon of the dtype that it computes in
    spread = lowering.emit("rsqrt", lowering.emit("add", mean, lowering.item(floor)))
    return affine(lowering, lowering.emit("mul", value, spread), weight, None, lowering.item)


@register("linalg_vector_norm", "norm")
def _vector_norm(lowering: Lowering, node: Node) -> Item:
    x, order = _value(lowering, node.args[0]), node.args[1]
    dims = _reduced_dims(node.args[2] if len(node.args) > 2 else None, len(x.shape))
    keepdim = len(node.args) > 3 and node.args[3] is True
    if order in (None, 2):
        # A plain sum of squares overflows where torch's does too (it accumulates squares in the input's type).
        return lowering.emit("sqrt", lowering.reduce("row_sum", lowering.emit("square", x), dims, keepdim))
    if order == 1:
        return lowering.reduce("row_sum", lowering.emit("abs", x), dims, keepdim)
    raise Unmatched(f"a norm of order {order}")


# -- losses: an elementwise form, then a reduction of everything -----------------------------------------------------


def _loss(lowering: Lowering, value: Value, reduction: Arg) -> Value:
    if reduction == 0:
        return value
    op = "row_mean" if reduction == 1 else "row_sum"
    return lowering.reduce(op, value, range(len(value.shape)), False)


@register("mse_loss", "l1_loss")
def _difference_loss(lowering: Lowering, node: Node) -> Item:
    gap = lowering.emit("sub", lowering.item(node.args[0]), lowering.item(node.args[1]))
    return _loss(lowering, lowering.emit("square" if "mse" in node.op else "abs", gap), node.args[2])


@register("smooth_l1_loss", "huber_loss")
def _huber(lowering: Lowering, node: Node) -> Item:
    edge = node.args[3]
    if not isinstance(edge, int | float) or edge <= 0:
        raise Unmatched("a Huber loss without an edge")
    gap = lowering.emit("abs", lowering.emit("sub", lowering.item(node.args[0]), lowering.item(node.args[1])))
    inside = lowering.emit("mul", lowering.emit("square", gap), constant(0.5))
    outside: Value = lowering.emit("sub", gap, constant(0.5 * edge))
    if "huber" in node.op:
        outside = lowering.emit("mul", outside, constant(float(edge)))
    else:
        inside = lowering.emit("div", inside, constant(float(edge)))
    value = lowering.emit("where", lowering.emit("lt", gap, constant(float(edge))), inside, outside)
    return _loss(lowering, value, node.args[2])


@register("kl_div")
def _kl_div(lowering: Lowering, node: Node) -> Item:
    given, target = lowering.item(node.args[0]), lowering.item(node.args[1])
    if node.kwarg("log_target"):
        value = lowering.emit("mul", lowering.emit("exp", target), lowering.emit("sub", target, given))
    else:
        inner = lowering.emit("mul", target, lowering.emit("sub", lowering.emit("log", target), given))
        # xlogy: nothing where the target is zero
        empty = lowering.emit("neg", lowering.emit("mul", target, given))
        value = lowering.emit("where", lowering.emit("eq", target, constant(0.0)), empty, inner)
    return _loss(lowering, value, node.args[2])
