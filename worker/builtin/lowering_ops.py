"""How each aten op is written in the vocabulary of a Program. Importing this module registers the handlers.

Formulas are chosen for float32: `x / (1 + exp(-x))` for silu, the `erf` form of gelu, a log1p form of softplus.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from worker.builtin.expressions import Number, Unmatched, constant
from worker.builtin.leaves import dtype_kind
from worker.builtin.lowering import HANDLERS, Item, Lowering, Value, register
from worker.builtin.trace import Arg, Node, Ref

_DIRECT = {
    "mul": "mul", "multiply": "mul", "neg": "neg", "abs": "abs", "reciprocal": "reciprocal", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log1p": "log1p",
    "sigmoid": "sigmoid", "tanh": "tanh", "erf": "erf", "sin": "sin", "cos": "cos", "maximum": "maximum",
    "minimum": "minimum", "floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc", "sign": "sign",
    "square": "square", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne", "logical_and": "and",
    "logical_or": "or", "logical_not": "not",
}  # fmt: skip


def _direct(op: str) -> None:
    arity = 1 if op in _UNARY else 2

    def handler(lowering: Lowering, node: Node) -> Item:
        return lowering.emit(_DIRECT[op], *(lowering.item(a) for a in node.args[:arity]))

    HANDLERS[op] = handler


_UNARY = frozenset(
    [
        "neg",
        "abs",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log1p",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "cos",
        "floor",
        "ceil",
        "round",
        "trunc",
        "sign",
        "square",
        "logical_not",
    ]
)
for _name in _DIRECT:
    _direct(_name)


def _scaled(lowering: Lowering, item: Item, alpha: Arg) -> Item:
    if alpha in (None, 1):
        return item
    if isinstance(item, Number):
        return lowering.leaves.number(item.value * float(alpha)) if isinstance(alpha, int | float) else item
    return lowering.emit("mul", item, lowering.item(alpha))


@register("add")
def _add(lowering: Lowering, node: Node) -> Item:
    right = _scaled(lowering, lowering.item(node.args[1]), node.kwarg("alpha", 1))
    return lowering.emit("add", lowering.item(node.args[0]), right)


@register("sub", "subtract")
def _sub(lowering: Lowering, node: Node) -> Item:
    right = _scaled(lowering, lowering.item(node.args[1]), node.kwarg("alpha", 1))
    return lowering.emit("sub", lowering.item(node.args[0]), right)


@register("rsub")
def _rsub(lowering: Lowering, node: Node) -> Item:
    return lowering.emit(
        "sub", lowering.item(node.args[1]), _scaled(lowering, lowering.item(node.args[0]), node.args[2])
    )


@register("div", "divide", "true_divide")
def _div(lowering: Lowering, node: Node) -> Item:
    result = lowering.emit("div", lowering.item(node.args[0]), lowering.item(node.args[1]))
    mode = node.kwarg("rounding_mode")
    return result if mode is None else lowering.emit(str(mode), result)


@register("pow")
def _pow(lowering: Lowering, node: Node) -> Item:
    base, exponent = lowering.item(node.args[0]), lowering.item(node.args[1])
    if isinstance(exponent, Number) and not isinstance(base, Number):
        simple = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(exponent.value)
        if simple:
            return lowering.emit(simple, base)
        if exponent.value == 1.0:
            return base
        if exponent.value == 3.0:
            return lowering.emit("mul", lowering.emit("square", base), base)
    return lowering.emit("pow", base, exponent)


@register("relu", "relu6")
def _relu(lowering: Lowering, node: Node) -> Item:
    result = lowering.emit("maximum", lowering.item(node.args[0]), constant(0.0))
    return lowering.emit("minimum", result, constant(6.0)) if "relu6" in node.op else result


@register("gelu")
def _gelu(lowering: Lowering, node: Node) -> Item:
    x = lowering.item(node.args[0])
    half = lowering.emit("mul", x, constant(0.5))
    if node.kwarg("approximate") == "tanh":
        cube = lowering.emit("mul", lowering.emit("square", x), x)
        inner = lowering.emit("add", x, lowering.emit("mul", cube, constant(0.044715)))
        bent = lowering.emit("tanh", lowering.emit("mul", inner, constant(math.sqrt(2.0 / math.pi))))
    else:
        bent = lowering.emit("erf", lowering.emit("mul", x, constant(math.sqrt(0.5))))
    return lowering.emit("mul", half, lowering.emit("add", bent, constant(1.0)))


@register("silu")
def _silu(lowering: Lowering, node: Node) -> Item:
    x = lowering.item(node.args[0])
    return lowering.emit("mul", x, lowering.emit("sigmoid", x))


def softplus(lowering: Lowering, x: Item) -> Value:
    """max(x, 0) + log1p(exp(-|x|)): exact at both ends, never overflows."""
    tail = lowering.emit("log1p", lowering.emit("exp", lowering.emit("neg", lowering.emit("abs", x))))
    return lowering.emit("add", lowering.emit("maximum", x, constant(0.0)), tail)


@register("softplus")
def _softplus(lowering: Lowering, node: Node) -> Item:
    x, beta, threshold = lowering.item(node.args[0]), lowering.item(node.args[1]), lowering.item(node.args[2])
    scaled = x if beta == constant(1.0) else lowering.emit("mul", x, beta)
    soft: Item = softplus(lowering, scaled)
    if scaled is not x:
        soft = lowering.emit("div", soft, beta)
    return lowering.emit("where", lowering.emit("gt", scaled, threshold), x, soft)


@register("mish")
def _mish(lowering: Lowering, node: Node) -> Item:
    x = lowering.item(node.args[0])
    return lowering.emit("mul", x, lowering.emit("tanh", softplus(lowering, x)))


@register("log_sigmoid")
def _log_sigmoid(lowering: Lowering, node: Node) -> Item:
    return lowering.emit("neg", softplus(lowering, lowering.emit("neg", lowering.item(node.args[0]))))


@register("leaky_relu")
def _leaky_relu(lowering: Lowering, node: Node) -> Item:
    x = lowering.item(node.args[0])
    positive = lowering.emit("gt", x, constant(0.0))
    return lowering.emit("where", positive, x, lowering.emit("mul", x, lowering.item(node.args[1])))


def _elu_form(lowering: Lowering, x: Item, alpha: Item, scale: Item, input_scale: Item) -> Value:
    bent = lowering.emit("mul", lowering.emit("expm1", lowering.emit("mul", x, input_scale)), alpha)
    return lowering.emit("mul", lowering.emit("where", lowering.emit("gt", x, constant(0.0)), x, bent), scale)


@register("elu")
def _elu(lowering: Lowering, node: Node) -> Item:
    x, alpha, scale, input_scale = (lowering.item(a) for a in node.args[:4])
    return _elu_form(lowering, x, alpha, scale, input_scale)


@register("selu")
def _selu(lowering: Lowering, node: Node) -> Item:
    alpha, scale = constant(1.6732632423543772), constant(1.0507009873554805)
    return _elu_form(lowering, lowering.item(node.args[0]), alpha, scale, constant(1.0))


@register("celu")
def _celu(lowering: Lowering, node: Node) -> Item:
    alpha = lowering.item(node.args[1])
    if not isinstance(alpha, Number):
        raise Unmatched("celu with a computed alpha")
    return _elu_form(lowering, lowering.item(node.args[0]), alpha, constant(1.0), constant(1.0 / alpha.value))


def clamp(lowering: Lowering, x: Item, low: Arg, high: Arg) -> Item:
    if low is not None:
        x = lowering.emit("maximum", x, lowering.item(low))
    if high is not None:
        x = lowering.emit("minimum", x, lowering.item(high))
    return x


@register("clamp", "clip", "hardtanh", "clamp_min", "clamp_max")
def _clamp(lowering: Lowering, node: Node) -> Item:
    x = lowering.item(node.args[0])
    if "clamp_max" in node.op:
        return clamp(lowering, x, None, node.args[1])
    return clamp(lowering, x, node.args[1], node.args[2] if len(node.args) > 2 else None)


@register("hardsigmoid", "hardswish")
def _hardsigmoid(lowering: Lowering, node: Node) -> Item:
    x = lowering.item(node.args[0])
    gate = clamp(lowering, lowering.emit("add", x, constant(3.0)), 0.0, 6.0)
    return lowering.emit("div", lowering.emit("mul", x, gate) if "hardswish" in node.op else gate, constant(6.0))


@register("softshrink")
def _softshrink(lowering: Lowering, node: Node) -> Item:
    x, edge = lowering.item(node.args[0]), lowering.item(node.args[1])
    shrunk = clamp(lowering, lowering.emit("sub", lowering.emit("abs", x), edge), 0.0, None)
    return lowering.emit("mul", lowering.emit("sign", x), shrunk)


@register("where")
def _where(lowering: Lowering, node: Node) -> Item:
    return lowering.emit("where", *(lowering.item(a) for a in node.args[:3]))


@register("masked_fill")
def _masked_fill(lowering: Lowering, node: Node) -> Item:
    x, mask, value = (lowering.item(a) for a in node.args[:3])
    return lowering.emit("where", mask, value, x)


@register("addcmul", "addcdiv")
def _addcmul(lowering: Lowering, node: Node) -> Item:
    base, left, right = (lowering.item(a) for a in node.args[:3])
    inner = lowering.emit("mul" if "addcmul" in node.op else "div", left, right)
    return lowering.emit("add", base, _scaled(lowering, inner, node.kwarg("value", 1)))


@register("lerp")
def _lerp(lowering: Lowering, node: Node) -> Item:
    start, end, weight = (lowering.item(a) for a in node.args[:3])
    return lowering.emit("add", start, lowering.emit("mul", weight, lowering.emit("sub", end, start)))


@register("glu")
def _glu(lowering: Lowering, node: Node) -> Item:
    raise Unmatched("glu splits its argument")


@register("dropout", "alpha_dropout", "feature_dropout")
def _dropout(lowering: Lowering, node: Node) -> Item:
    if node.args[2] and node.args[1] != 0:
        raise Unmatched("dropout in training mode")
    return lowering.item(node.args[0])


@register("to", "_to_copy", "type_as", "contiguous", "clone", "detach", "alias", "float")
def _same(lowering: Lowering, node: Node) -> Item:
    value = lowering.item(node.args[0])
    if dtype_kind(node.dtype) == "int":
        raise Unmatched("a cast to an integer type")
    truth = isinstance(value, Value) and lowering.steps[value.step].truth
    if truth and node.dtype != "bool":
        return lowering.emit("bool_to_float", value)
    if node.dtype == "bool" and not truth:
        return lowering.emit("ne", value, constant(0.0))
    return value


@register("zeros_like", "ones_like", "full_like")
def _filled(lowering: Lowering, node: Node) -> Item:
    if "full_like" in node.op:
        return lowering.leaves.number(node.args[1])
    return constant(1.0 if "ones" in node.op else 0.0)


@register("batch_norm")
def _batch_norm(lowering: Lowering, node: Node) -> Item:
    x, weight, bias, mean, var, training, _, eps = node.args[:8]
    if training or mean is None or var is None:
        raise Unmatched("batch norm with batch statistics")
    rank = len(node.shape)
    centred = lowering.emit("sub", lowering.item(x), _channel(lowering, mean, rank))
    spread = lowering.emit("rsqrt", lowering.emit("add", _channel(lowering, var, rank), lowering.item(eps)))
    result = lowering.emit("mul", centred, spread)
    return affine(lowering, result, weight, bias, lambda ref: _channel(lowering, ref, rank))


def _channel(lowering: Lowering, arg: Arg, rank: int) -> Value:
    """A per-channel vector, aligned with dimension 1 of the domain."""
    if not isinstance(arg, Ref):
        raise Unmatched("a computed channel vector")
    return lowering.channel_vector(arg.index, rank)


def affine(lowering: Lowering, value: Value, weight: Arg, bias: Arg, load: Callable[[Arg], Item]) -> Value:
    if weight is not None:
        value = lowering.emit("mul", value, load(weight))
    return value if bias is None else lowering.emit("add", value, load(bias))
