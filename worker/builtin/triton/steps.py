"""A Program's steps as Triton expressions, in float32.

`tl` has no tanh, expm1, log1p or pow that also runs in the interpreter (libdevice does not), so those are written out
here from what it has, each accurate to a few units in the last place. A candidate carries only the helpers it uses.
"""

from __future__ import annotations

from collections.abc import Iterable

from worker.builtin.expressions import Number, Unmatched

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip

_CALLS = {
    "abs": "tl.abs({0})", "neg": "-{0}", "reciprocal": "1.0 / {0}", "sqrt": "tl.sqrt_rn({0})", "rsqrt": "tl.rsqrt({0})",
    "square": "{0} * {0}", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))", "erf": "tl.erf({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "not": "{0} == 0", "bool_to_float": "{0}.to(tl.float32)",
    "trunc": "tl.where({0} < 0.0, tl.ceil({0}), tl.floor({0}))",
    "sign": "tl.where({0} > 0.0, 1.0, tl.where({0} < 0.0, -1.0, 0.0))",
    "where": "tl.where({0}, {1}, {2})",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "tanh": "_tanh({0})", "expm1": "_expm1({0})", "log1p": "_log1p({0})", "round": "_round({0})",
    "pow": "_pow({0}, {1})",
}  # fmt: skip

_EXPM1 = """\
@triton.jit
def _expm1(x):
    # exp(x) - 1 cancels near 0: eight terms of the series are exact to float32 below 0.5.
    series = x * (1.0 + x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120 + x * (1.0 / 720 + x / 5040.0))))))
    return tl.where(tl.abs(x) < 0.5, series, tl.exp(x) - 1.0)
"""

_TANH = """\
@triton.jit
def _tanh(x):
    size = tl.abs(x)
    grown = _expm1(2.0 * tl.where(size > 20.0, 20.0, size))
    bent = grown / (grown + 2.0)
    return tl.where(x < 0.0, -bent, bent)
"""

_LOG1P = """\
@triton.jit
def _log1p(x):
    # log(u) * x / (u - 1) undoes the rounding of u = 1 + x.
    u = 1.0 + x
    inside = tl.where((u == 1.0) | (u == float("inf")), 2.0, u)
    near = tl.log(inside) * (x / (inside - 1.0))
    return tl.where(u == 1.0, x, tl.where(u == float("inf"), u, near))
"""

_ROUND = """\
@triton.jit
def _round(x):
    # Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even; larger numbers are integers.
    return tl.where(tl.abs(x) < 4194304.0, (x + 12582912.0) - 12582912.0, x)
"""

_POW = """\
@triton.jit
def _pow(x, y):
    x, y = x + 0.0 * y, y + 0.0 * x
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    half = y * 0.5
    odd = (tl.floor(y) == y) & (tl.floor(half) != half)
    signed = tl.where(tl.floor(y) == y, tl.where(odd, -size, size), float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(x < 0.0, signed, size))
"""

_NAN_MAX = """\
@triton.jit
def _nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""

_NAN_MIN = """\
@triton.jit
def _nan_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""

_HELPERS = {
    "_expm1(": _EXPM1, "_tanh(": _TANH, "_log1p(": _LOG1P, "_round(": _ROUND, "_pow(": _POW,
    "_nan_max": _NAN_MAX, "_nan_min": _NAN_MIN,
}  # fmt: skip


def number(value: Number, names: dict[Number, str]) -> str:
    """A number inside a kernel: the literal, or the name of the kernel's argument that carries it."""
    if value in names:
        return names[value]
    text = value.text
    special = {"math.inf": 'float("inf")', "-math.inf": '(-float("inf"))', "math.nan": 'float("nan")'}
    if text in special:
        return special[text]
    return f"({text})" if text.startswith("-") else text


def expression(op: str, args: Iterable[str]) -> str:
    """A step's value as Triton. Raises Unmatched for a step that has no form here."""
    parts = tuple(args)
    if op in _BINARY:
        return f"{parts[0]} {_BINARY[op]} {parts[1]}"
    if op not in _CALLS:
        raise Unmatched(f"{op} has no Triton form here")
    return _CALLS[op].format(*parts)


def helpers(kernels: str) -> str:
    """The helper functions that the kernels' text calls, in the order of definition."""
    used = {name for name in _HELPERS if name in kernels}
    if "_tanh(" in used:
        used.add("_expm1(")
    return "\n\n".join(text for name, text in _HELPERS.items() if name in used)
