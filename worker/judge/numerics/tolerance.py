"""Thresholds calibrated from both sides: between the errors of honest arithmetic and those of broken arithmetic.

An *accept anchor* E_A is the error (`measures`) of honest arithmetic: eager in the problem's dtype, and not less than
16 units of fp32 rounding: an honest sequential fp32 sum over 16,384 terms is 12 to 21 times worse than a blocked one,
measured. A *reject anchor* E_R is the error of the reference one precision lower. The threshold is their
geometric mean when they are at least 16 apart, but not below 64 * E_A as long as that is under a quarter of E_R;
otherwise the family cannot see precision and 8 * E_A guards logic only (in fp32 at least 64 units of 16: a sequential
sum of 8,191 nearly equal numbers rounds the same way every time and is 34 of them off, measured).

Where an honest 16-bit result's error is much larger in a few slices than in most, as where what is large in a row of a
gradient cancels, E_A is the luck of one draw. There a slice over the threshold also passes within 4 times what honest
roundings, eager's and two draws', left of that very slice (`Tolerance.noise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from worker.judge.numerics.precision import EIGHT_BITS, FP32_ULP, SIXTEEN_BITS

_ACCEPT_FLOOR = {
    torch.float64: 2.0**-50,
    torch.float32: 16 * FP32_ULP,
    torch.float16: 2.0**-12,
    torch.bfloat16: 2.0**-9,
    torch.float8_e4m3fn: 2.0**-6,
    torch.float8_e5m2: 2.0**-5,
}
"""Of 8-bit types: the truth lies on their grid as well, so that an honest result is exact but where a rounding before
the last tips a number to its neighbour, 1/8 (1/4) away. One such in a row of 16 is 1/32 of it, if it is as large as the
others, and four times as much if there is no other."""
_NARROW = EIGHT_BITS | frozenset(SIXTEEN_BITS.values())
_GENEROUS = 64.0
"""An honest sequential fp32 LayerNorm over 8,192 columns is 18 accept floors off (measured)."""
AS_HONEST = 4.0
"""Times autocast's error, or that of roundings to 16 bits: other places to round, and other luck. Where a column of a
result is hardly anything but the rounding of a bias that cancels, autocast is 0.2 to 0.8 off, and an honest kernel 0.3
(measured)."""
_SEPARATION = 16.0
"""With nearer anchors the threshold would lie within 4 accept floors, where honest sequential sums land."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The threshold for one output of one case."""

    accept_error: float
    reject_error: float
    threshold: float
    sees_precision: bool
    rounded_to: torch.dtype | None = None
    """The type that honest arithmetic may round to, where it is narrower than the output's."""
    bias: float = 0.0
    """Of honest arithmetic in that type, as `bias` measures it."""
    element: float = 0.0
    """In place of the threshold for single elements, where honest ones are further off than that allows."""
    noise: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """The rms error that honest roundings have in each slice, by kind of slice, where it is `uneven`."""


def tolerance(accept_error: float, reject_error: float, dtype: torch.dtype) -> Tolerance:
    """The two-sided threshold for an output that honest arithmetic rounds to `dtype`."""
    floor = _ACCEPT_FLOOR.get(dtype, 16 * FP32_ULP)
    accept = max(accept_error, floor)
    if reject_error < _SEPARATION * accept:
        least = 0.0 if dtype in _NARROW else _GENEROUS * floor
        return Tolerance(accept, reject_error, max(8 * accept, least), sees_precision=False, rounded_to=dtype)
    threshold = max(math.sqrt(accept * reject_error), min(_GENEROUS * accept, reject_error / 4))
    if dtype in _NARROW:
        threshold = min(threshold, max(8 * accept, _SEPARATION * floor))
    return Tolerance(accept, reject_error, threshold, sees_precision=True, rounded_to=dtype)


def loosened(limit: Tolerance, error: float, bias: float) -> Tolerance:
    """A tolerance that admits honest arithmetic of 16 bits that eager's result does not tell of: `error` and `bias` are
    what autocast, or roundings to as many bits, made of the truth."""
    threshold = max(limit.threshold, AS_HONEST * error)
    sees = limit.sees_precision and threshold < limit.reject_error
    accept = max(limit.accept_error, error)
    return replace(limit, accept_error=accept, threshold=threshold, sees_precision=sees, bias=abs(bias))


def with_elements(limit: Tolerance, error: float) -> Tolerance:
    """A tolerance that admits single elements as those of an honest result: `error` is their `element_error`. All that
    is wrong with a row may be in one of its elements, and is sqrt(n) times as large there as in the row: of 65,536 fp16
    results of a softmax that is nearly one-hot, the gradient of the largest is what rounding left of 1 - y, in eager as
    well, and was 1.8 times the bound (measured)."""
    return replace(limit, element=AS_HONEST * error)


def with_noise(limit: Tolerance, noise: Mapping[str, torch.Tensor], element: float) -> Tolerance:
    """A tolerance that also admits the errors of one more honest result: in slices `slice_noise`, and in elements
    `element_error`."""
    most = {name: torch.maximum(error, limit.noise.get(name, error)) for name, error in noise.items()}
    return replace(limit, noise=most, element=max(limit.element, AS_HONEST * element))


def relaxed(limit: Tolerance, seeing: float) -> Tolerance:
    """A tolerance of a family that cannot see precision, at least as wide as one that can (`seeing`): small integers
    leave eager without any error, but not an honest kernel that divides by a sum."""
    return limit if limit.sees_precision else replace(limit, threshold=max(limit.threshold, seeing))
