"""Where NaN and infinities of the inputs have no part in a result, and where arithmetic decides what they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from worker.judge.numerics.comparison import unsure_signs
from worker.judge.numerics.precision import widened
from worker.judge.numerics.rounding import EmptySoftmax, SkippedZeros, Underflow
from worker.judge.numerics.tolerance import Tolerance
from worker.judge.numerics.twin import COMPUTED_IN_FP32, Twin, is_float

_STAND_INS = (0.0, 32.0, -32.0)
"""Around which the numbers lie that stand in for special values. Larger than any normal number of a row, and small
enough that an exponential of it, times a mask's zero, is zero and not NaN."""


@dataclass(frozen=True, slots=True)
class Specials:
    """One call of a reference whose inputs hold special values."""

    twin: Twin
    inputs: tuple[Any, ...]

    def without_idle(self, truth: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The truth as a kernel may have it that does not touch what has no part in its result."""
        return self._without_skipped(self._without_idle_nans(self._without_idle_specials(truth)))

    def unsure(
        self, truth: tuple[torch.Tensor, ...], nans: list[torch.Tensor], limits: tuple[Tolerance, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Where an infinity may have either sign, or be NaN, or NaN an infinity. `nans`: where the formula has some."""
        _zero, *large = _STAND_INS  # of either sign
        found = tuple(map(unsure_signs, *(self._tamed(around) for around in large), limits))
        for others in (self._made_of_infinities(truth), self._made_of_underflow(truth, nans)):
            found = tuple(map(torch.logical_or, found, others))
        return tuple(places & ~torch.isfinite(exact) for places, exact in zip(found, truth, strict=True))

    def _tamed(
        self, around: float, wild: Callable[[torch.Tensor, torch.dtype], torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """The truth with numbers around this one in place of special values, or of those that are `wild`."""
        return self.twin.results(_all_tamed(self.inputs, around, wild or _special))

    def _without_idle_specials(self, truth: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The truth, finite where a special value has no part in the result.

        Causal attention multiplies what it masks by zero, so a NaN there makes NaN of rows that do not depend on it; a
        kernel that skips masked blocks gives numbers, and is right. Such places are those where the result is the same
        whatever numbers stand in for the special ones: ordinary ones, and large ones of either sign, because a maximum
        does not change with a number that is not its largest. Nor has NaN to be where every score of a softmax is -inf:
        fused attention has zero there.
        """
        with EmptySoftmax():
            empty = self.twin.results(self.inputs)
        truth = tuple(torch.where(exact.isnan(), other, exact) for exact, other in zip(truth, empty, strict=True))
        del empty
        first, *others = _STAND_INS
        instead = self._tamed(first)
        idle = [~torch.isfinite(exact) for exact in truth]
        for around in others:
            for place, result in enumerate(self._tamed(around)):
                idle[place] &= instead[place] == result
        return tuple(map(torch.where, idle, instead, truth))

    def _without_idle_nans(self, truth: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The truth with what infinities make of it where a NaN has no part in the result: in a row of causal attention
        that an infinity decides, NaN of a masked key is as idle as it is in others."""
        values = [widened(value) for value in self.inputs if is_float(value)]
        if not (
            any(bool(value.isnan().any()) for value in values) and any(bool(value.isinf().any()) for value in values)
        ):
            return truth
        first, *others = _STAND_INS
        with EmptySoftmax():
            instead = self._tamed(first, _nan)
            idle = [exact.isnan() & ~result.isnan() for exact, result in zip(truth, instead, strict=True)]
            for around in others:
                for place, result in enumerate(self._tamed(around, _nan)):
                    idle[place] &= instead[place] == result
        return tuple(map(torch.where, idle, instead, truth))

    def _without_skipped(self, truth: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The truth with what a kernel that skips zeros makes of its NaN: in a row of causal attention that an infinity
        decides, another of a masked key is as idle as it is in others (48 of a million gradients of queries)."""
        if not any(bool(exact.isnan().any()) for exact in truth):
            return truth
        with EmptySoftmax(), SkippedZeros():
            skipped = self.twin.results(self.inputs)
        return tuple(torch.where(exact.isnan(), other, exact) for exact, other in zip(truth, skipped, strict=True))

    def _made_of_infinities(self, truth: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Where the truth is NaN with infinities among the inputs and not without them. Whether they make NaN or an
        infinity depends on the order of the steps: a scan that multiplies decays first takes 0 times infinity where one
        that goes token by token takes 0.5 times infinity (46 of 2,560 places of a selective scan's gradients)."""
        without = self._tamed(0.0, _infinite)
        return [exact.isnan() & ~other.isnan() for exact, other in zip(truth, without, strict=True)]

    def _made_of_underflow(self, truth: tuple[torch.Tensor, ...], nans: list[torch.Tensor]) -> list[torch.Tensor]:
        """Where the truth is infinite, and NaN where results too small for float32 are zero. With two infinities at one
        place of a selective scan's gradient, one of them behind decays of e^-108, a parallel scan has NaN there, and so
        has the reference itself with another length of its chunks. Nowhere, if the reference refuses such zeros."""
        none = [torch.zeros_like(exact, dtype=torch.bool) for exact in truth]
        if not {value.dtype for value in self.inputs if is_float(value)} <= COMPUTED_IN_FP32:
            return none
        found = self.twin.results_if_alike(self.inputs, truth, Underflow())
        if found is None:
            return none
        return [one.isnan() & ~own & exact.isinf() for one, own, exact in zip(found, nans, truth, strict=True)]


def _all_tamed(
    inputs: tuple[Any, ...], bias: float, wild: Callable[[torch.Tensor, torch.dtype], torch.Tensor]
) -> tuple[Any, ...]:
    """Inputs with normal numbers around `bias` wherever `wild`, given widened values and their own type, says so."""

    def tamed(value: Any) -> Any:
        if not is_float(value):
            return value
        generator = torch.Generator(device=value.device).manual_seed(int(bias) % 101)
        normal = torch.randn(value.shape, generator=generator, device=value.device).add_(bias).to(value.dtype)
        return torch.where(wild(widened(value), value.dtype), normal, value)

    return tuple(map(tamed, inputs))


def _special(plain: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is not finite or would soon overflow."""
    return ~(torch.isfinite(plain) & (plain.abs() < torch.finfo(dtype).max / 2))


def _nan(plain: torch.Tensor, _dtype: torch.dtype) -> torch.Tensor:
    return plain.isnan()


def _infinite(plain: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _special(plain, dtype) & ~plain.isnan()
