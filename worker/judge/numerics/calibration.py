"""The tolerance of each output of one call: what eager and other honest arithmetic make of its inputs, and what the
same graph makes one precision lower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from worker.judge.numerics.comparison import forgiven
from worker.judge.numerics.measures import bias, element_error, samples, slice_error, slice_noise, uneven
from worker.judge.numerics.precision import SIXTEEN_BITS, representable, widened, working_type
from worker.judge.numerics.rounding import DRAWS, FaithfulRounding, moved
from worker.judge.numerics.tolerance import Tolerance, loosened, tolerance, with_elements, with_noise
from worker.judge.numerics.twin import COMPUTED_IN_FP32, Twin, copied, is_float
from worker.judge.verdict import ReferenceFailed

_FEW_SAMPLES = 1024.0
"""Of rounding (`samples`): what more of them have in common is under a sixteenth of one rounding's error."""
_ROUNDINGS = 16.0
"""Roundings that one operation may hide: as many as `numerics` accepts of any float32 result (12 to 21 in a sequential
sum, measured), here times what one rounding of each operation does to this result. Softmax's gradient on rows that are
nearly one-hot, from a sum that was sequential, is 10 times as far off as by one (measured)."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of one call of a reference."""

    twin: Twin
    inputs: tuple[Any, ...]
    truth: tuple[torch.Tensor, ...]
    eager: tuple[torch.Tensor, ...]
    hits: tuple[torch.Tensor | None, ...]
    """As in `measures.slice_error`, for each output."""

    def tolerances(self) -> tuple[Tolerance, ...]:
        """Of each output. Raises ReferenceFailed."""
        limits = self._limits()
        for others in (self._autocast, self._without_overflow):
            sides = zip(limits, others(), self.truth, self.hits, strict=True)
            limits = tuple(_loosened(limit, result, exact, counts) for limit, result, exact, counts in sides)
        return self._with_noise(self._with_common_roundings(limits))

    def _limits(self) -> tuple[Tolerance, ...]:
        """Between the errors of honest results (eager's, and those of other roundings) and that of the same graph one
        precision lower. One of these results lives at a time: all of the triangle update's together were 27 times its
        inputs, which no H100 holds."""
        floats = [place for place, result in enumerate(self.eager) if widened(result).is_floating_point()]
        accepts = {place: self._error(place, self.eager[place]) for place in floats}
        for draw in range(DRAWS):
            for place, error in self._rounding_errors(draw).items():
                accepts[place] = max(accepts[place], _ROUNDINGS * error)
        degraded = self.twin.degraded_results(self.inputs)
        limits = [Tolerance(0.0, 0.0, 0.0, sees_precision=True)] * len(self.eager)
        for place in floats:
            dtype = self.eager[place].dtype
            reject = self._error(place, representable(degraded[place], dtype))
            limit = tolerance(accepts[place], reject, working_type(dtype, self.twin.precision))
            limits[place] = with_elements(limit, _elements_of_honest(self.eager[place], self.truth[place]))
        return tuple(limits)

    def _error(self, place: int, result: torch.Tensor) -> float:
        """The largest slice error of a result of the reference in one output's place, without what may be NaN or
        infinite because the result is."""
        return error_of_honest(result, self.truth[place], self.hits[place], self.eager[place].dtype)

    def _rounding_errors(self, draw: int) -> dict[int, float]:
        """Of each output of floats: the error of another honest rounding than eager's, if there is one."""
        return {
            place: _rounding_error(result, self.truth[place], self.hits[place], self.eager[place].dtype)
            for place, result in enumerate(self._rounded(draw) or ())
            if widened(self.eager[place]).is_floating_point()
        }

    def _rounded(self, draw: int) -> tuple[torch.Tensor, ...] | None:
        """The results of another honest rounding than eager's, in float32 arithmetic. 16-bit inputs do not move: half a
        unit of theirs is a cheat's error, and an honest kernel's intermediates are wider. None of other types, or where
        the reference refuses what moved inputs lead to, or answers in another shape."""
        kinds = {value.dtype for value in (*self.eager, *self.inputs) if is_float(value)}
        if not kinds or not kinds <= COMPUTED_IN_FP32:
            return None
        moves = kinds == {torch.float32}
        near = tuple(moved(value.double(), draw) if moves and is_float(value) else value for value in self.inputs)
        return self.twin.results_if_alike(near, self.eager, FaithfulRounding(draw))

    def _autocast(self) -> list[torch.Tensor | None]:
        """What autocast gives in place of each float32 output, at the 16 bits that the policy allows; nothing where it
        allows none, for other outputs, and where the reference refuses."""
        none: list[torch.Tensor | None] = [None] * len(self.eager)
        narrow = SIXTEEN_BITS.get(self.twin.precision.compute)
        if narrow is None:
            return none
        try:
            autocast = torch.autocast(self.eager[0].device.type, dtype=narrow)
            found = self.twin.eager(copied(self.inputs), autocast)
        except ReferenceFailed:
            return none
        if [one.shape for one in found] != [one.shape for one in self.eager]:
            return none
        return [one if other.dtype == torch.float32 else None for one, other in zip(found, self.eager, strict=True)]

    def _without_overflow(self) -> list[torch.Tensor | None]:
        """In place of each 16-bit output that is mostly NaN or infinite in eager, and finite in truth: what roundings
        to as many bits make of it. Eager is no measure of honest arithmetic there: a kernel that stays finite where
        X (X^T Y) is beyond 65,504 has gradients that are 3 % off in rows that cancel (measured)."""
        lost = [_lost(result, exact) for result, exact in zip(self.eager, self.truth, strict=True)]
        if not any(lost):
            return [None] * len(self.eager)
        narrow = next(result.dtype for result, gone in zip(self.eager, lost, strict=True) if gone)
        with FaithfulRounding(0, narrow):
            found = self.twin.results(self.inputs)
        return [one if gone else None for one, gone in zip(found, lost, strict=True)]

    def _with_common_roundings(self, limits: tuple[Tolerance, ...]) -> tuple[Tolerance, ...]:
        """Tolerances that admit as bias what other roundings to the policy's 16 bits have in common, where a truth is
        few numbers again and again. A norm over one channel leaves one number in 131,072 places; autocast was less
        than 0.05 % off there by luck, and an honest kernel 0.66 %, 1.7 roundings to bf16 (measured)."""
        narrow = SIXTEEN_BITS.get(self.twin.precision.compute)
        if narrow is None:
            return limits
        few = [
            place
            for place, (exact, result) in enumerate(zip(self.truth, self.eager, strict=True))
            if result.dtype == torch.float32 and exact.dim() > 1 and samples(exact, narrow) < _FEW_SAMPLES
        ]
        found = list(limits)
        for draw in range(DRAWS if few else 0):
            with FaithfulRounding(draw, narrow):
                other = self.twin.results(self.inputs)
            for place in few:
                mean, _spread = bias(other[place], self.truth[place]) or (0.0, 0.0)
                found[place] = replace(found[place], bias=max(found[place].bias, abs(mean)))
        return tuple(found)

    def _with_noise(self, limits: tuple[Tolerance, ...]) -> tuple[Tolerance, ...]:
        """Tolerances of 16-bit outputs that admit in each slice, and in single elements, what honest roundings leave
        there, where eager's errors are uneven. In a row of 64 gradients of weights one term of 10,000 times the others
        was itself a sum that cancels: eager was 0.044 off by luck, other roundings 0.02 to 0.36, and an honest kernel
        0.228, of 0.203 allowed (measured)."""
        found = list(limits)
        for place, result in self._of_uneven_outputs():
            dtype, counts = self.eager[place].dtype, self.hits[place]
            sides = _sides(result, self.truth[place], dtype)
            found[place] = with_noise(found[place], slice_noise(*sides, counts), element_error(*sides, dtype))
        return tuple(found)

    def _of_uneven_outputs(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(place, result) of 16-bit outputs: eager's, and those of other roundings to as many bits."""
        places = [
            place
            for place, (result, exact) in enumerate(zip(self.eager, self.truth, strict=True))
            if result.dtype in SIXTEEN_BITS.values() and uneven(*_sides(result, exact, result.dtype), self.hits[place])
        ]
        yield from ((place, self.eager[place]) for place in places)
        for narrow in {self.eager[place].dtype for place in places}:
            for draw in range(DRAWS):
                drawn = self.twin.results_if_alike(self.inputs, self.eager, FaithfulRounding(draw, narrow))
                if drawn is not None:
                    yield from ((place, drawn[place]) for place in places if self.eager[place].dtype == narrow)


def error_of_honest(
    result: torch.Tensor, truth: torch.Tensor, hits: torch.Tensor | None, dtype: torch.dtype | None = None
) -> float:
    """The largest slice error of a result of the reference, in outputs of `dtype` (its own), without what may be NaN or
    infinite because the result is."""
    exact, result = representable(truth, dtype or result.dtype), widened(result)
    return slice_error(forgiven(result, exact, result), exact, hits)[0]


def _sides(result: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A result of the reference and the truth, for outputs of `dtype`; the truth where the result is not finite."""
    exact, result = representable(truth, dtype), representable(result, dtype)
    return torch.where(result.isfinite(), result.to(torch.float64), exact), exact


def _elements_of_honest(result: torch.Tensor, truth: torch.Tensor) -> float:
    """The same for single elements, as `element_error` measures them."""
    exact, dtype = representable(truth, result.dtype), result.dtype
    return element_error(forgiven(widened(result), exact, widened(result)), exact, dtype)


def _lost(eager: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether a 16-bit result of eager is not finite in most places where it should be."""
    if eager.dtype not in SIXTEEN_BITS.values():
        return False
    finite = torch.isfinite(truth)
    return bool((finite & torch.isfinite(eager)).sum() * 2 < finite.sum())


def _loosened(
    limit: Tolerance, other: torch.Tensor | None, exact: torch.Tensor, hits: torch.Tensor | None
) -> Tolerance:
    """A tolerance that also admits the error of another honest result, if there is one."""
    if other is None:
        return limit
    honest = torch.where(other.isfinite(), other.to(torch.float64), exact)
    found = bias(honest, exact)
    return loosened(limit, slice_error(honest, exact, hits)[0], found[0] if found else 0.0)


def _rounding_error(rounded: torch.Tensor, exact: torch.Tensor, hits: torch.Tensor | None, dtype: torch.dtype) -> float:
    """The error of an honest rounding, over slices and single elements: both are bounded by one threshold."""
    result, exact = _sides(rounded, exact, dtype)
    return max(slice_error(result, exact, hits)[0], element_error(result, exact, dtype))
