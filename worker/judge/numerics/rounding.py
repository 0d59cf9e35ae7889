"""What honest arithmetic may do to the fp64 twin of a reference: other roundings, other words for an empty softmax,
sums without what is multiplied with zero, and zeros where float32 has them.

*Faithful rounding.* Eager is one honest algorithm, and on some inputs a lucky one: softmax's gradient y * (g - <g, y>)
cancels on rows that are nearly one-hot, where eager's own roundings happen to be exact while a kernel that stores y in
float32 is 29 times worse (measured). Discrete stochastic arithmetic (Vignes, "A stochastic arithmetic for reliable
scientific computation", 1993) tells how much of a result rounding alone decides: the graph is run again, and each
result of an operation that a float32 cannot hold becomes one of its two float32 neighbours. A result that a float32
holds stays as it is, so that whole numbers before a floor stay whole. Inputs move by half a unit too, except those of
few bits: a sum that cancels is only as good as its inputs.

*An empty softmax.* Scores that are all -inf are NaN by the formula; fused attention calls such a row masked, and zero.

*Zero times infinity.* A kernel that skips what a mask hides never multiplies it; the formula multiplies it with zero,
and has NaN.

*Underflow.* What a float32 cannot hold is zero in it, and zero times infinity is NaN. A float64 holds e^-700: there a
scan that multiplies decays first still has an infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DRAWS = 2
MANTISSA = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
"""Bits of a type after the point."""
_STEP = 1 << (52 - MANTISSA[torch.float32])
"""Float64s from one float32 to the next."""
_FEW_SPECIALS = 64
"""A product is taken apart at no more places of its sum than this; the inputs of `special` hold fewer."""
_OWN_ERROR = 4
"""So near to a float32, a float64 is one that float64's own rounding missed: 0.1 * 10 is whole before a floor."""
_FEW_BITS = 52 - 7
"""Inputs that are exact in so much less stay exact: masks, whole numbers, powers of two, equal rows."""
_UNDERFLOW = 2.0**-63
"""The root of float32's least normal number: of two such factors another order of steps makes zero first. Of 15
selective scans that other honest orders gave NaN the least normal number explained 7, this one all (measured)."""
_AT_ONCE = 1 << 24
"""Elements that are rounded at a time: on the way to the result they take six times their own memory."""
_MULTIPLIER = -7046029254386353131
"""2^64 / golden ratio, odd: the top bit of a product with it hardly depends on the number, but always gives the same
for it, so a run can be repeated without a generator."""


class _EachResult(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, `changed` is applied to every float64 result of an operation: views stay views, and what works in
    place is changed in place."""

    def __init__(self, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self._changed = changed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation, then the change."""
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(item.alias_info is not None and not item.alias_info.is_write for item in returns):
            return result
        if any(item.alias_info is not None for item in returns):
            return tree_map(lambda value: value.copy_(self._changed(value)) if _is_wide(value) else value, result)
        return tree_map(lambda value: self._changed(value) if _is_wide(value) else value, result)


class FaithfulRounding(_EachResult):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, every float64 result of an operation is one of its two neighbours in `dtype`, but of unlimited
    exponent; what `dtype` holds, NaN and infinities stay. `draw` (below DRAWS) as in `faithful`."""

    def __init__(self, draw: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(lambda value: faithful(value, draw, dtype))


class Underflow(_EachResult):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, every float64 result below `_UNDERFLOW` is zero, copies of inputs among them."""

    def __init__(self) -> None:
        super().__init__(lambda value: torch.where(value.abs() < _UNDERFLOW, 0.0, value))


class EmptySoftmax(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, a softmax of nothing but -inf is zero, as in fused attention, and not NaN."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation; where it is a softmax, zeros in place of NaN."""
        result: Any = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten._softmax.default:
            return result
        empty = (args[0] == -torch.inf).all(dim=args[1], keepdim=True)
        return torch.where(empty, 0.0, result)


class SkippedZeros(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """While active, zero times what is not finite is zero in a product of matrices: a kernel may skip zeros."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation; where it is a product, without those terms."""
        if func not in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            return func(*args, **(kwargs or {}))
        left, right = args
        places = _special_places(left, right)
        if not places:
            return func(left, right)
        left, right = left.clone(), right.clone()
        taken = [(left[..., at, None].clone(), right[..., at, None, :].clone()) for at in places]
        left[..., places] = 0.0
        right[..., places, :] = 0.0
        result = func(left, right)
        for column, row in taken:
            result += torch.where((column == 0) | (row == 0), 0.0, column * row)
        return result


def _special_places(left: torch.Tensor, right: torch.Tensor) -> list[int]:
    """The places of the sum where either matrix of a product is not finite, if it is so at few."""
    found: set[int] = set()
    for matrix, own in ((left, -1), (right, -2)):
        others = [dim for dim in range(matrix.dim()) if dim != matrix.dim() + own]
        wild: list[int] = (~torch.isfinite(matrix)).any(dim=others).nonzero().flatten().tolist()
        found.update(wild if len(wild) <= _FEW_SPECIALS else ())
    return sorted(found)


def faithful(exact: torch.Tensor, draw: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Each element of a float64 tensor as one of its two neighbours in `dtype` (of unlimited exponent): draw 0 chooses
    as if by chance, draw 1 the farther one. Chance alone is lucky in one draw of two where one rounding matters."""
    if exact.numel() <= _AT_ONCE:
        return _faithful(exact, draw, dtype)
    order = sorted(range(exact.dim()), key=exact.stride, reverse=True)
    source = exact.permute(order).contiguous()  # as it lies in memory, and so does the result: references call view
    result = torch.empty_like(source)
    for start in range(0, exact.numel(), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        result.view(-1)[part] = _faithful(source.view(-1)[part], draw, dtype)
    return result.permute([order.index(dim) for dim in range(exact.dim())])


def _faithful(exact: torch.Tensor, draw: int, dtype: torch.dtype) -> torch.Tensor:
    step = 1 << (52 - MANTISSA[dtype])
    bits = exact.contiguous().view(torch.int64)
    rest = bits & (step - 1)
    up = rest < step // 2 if draw else bits * _MULTIPLIER < 0
    up = (up & (rest > _OWN_ERROR)) | (rest >= step - _OWN_ERROR)
    rounded = (bits - rest + up * step).view(torch.float64)  # a carry into the exponent is right
    return torch.where(torch.isfinite(exact), rounded, exact)


def moved(exact: torch.Tensor, draw: int) -> torch.Tensor:
    """Each element of a float64 tensor of float32 values half a unit of its last place up or down; values of at most
    8 significant bits stay."""
    bits = exact.contiguous().view(torch.int64)
    chance = bits * _MULTIPLIER < 0
    half = torch.where(chance if draw else ~chance, _STEP // 2, -_STEP // 2)
    stays = (bits >> _FEW_BITS << _FEW_BITS == bits) | ~torch.isfinite(exact)
    return torch.where(stays, exact, (bits + half).view(torch.float64))


def _is_wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64 and value.layout == torch.strided
