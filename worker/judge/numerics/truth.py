"""Cases: inputs with their fp64 truth, the eager result, and the tolerance between honest and broken arithmetic.

Prepared once per problem and workload and reused for every candidate; the truth costs far more than the candidate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from problems.catalog import Domain, Precision
from worker.judge.inputs import families
from worker.judge.numerics.comparison import (
    SIXTEEN_BITS,
    Comparison,
    Tolerance,
    bias,
    compare,
    degrade,
    element_error,
    forgiven,
    loosened,
    relaxed,
    representable,
    samples,
    slice_error,
    slice_noise,
    tolerance,
    uneven,
    unsure_signs,
    widened,
    with_elements,
    with_noise,
    working_type,
)
from worker.judge.numerics.hot_rows import row_hits
from worker.judge.numerics.parking import parked
from worker.judge.numerics.rounding import DRAWS, EmptySoftmax, FaithfulRounding, SkippedZeros, Underflow, moved
from worker.judge.reference.problem import Instance, Problem, call_reference
from worker.judge.reference.randomness import refuse_random
from worker.judge.verdict import ReferenceFailed
from worker.runner.values import tensors_of

_STAND_INS = (0.0, 32.0, -32.0)
"""Around which the numbers lie that stand in for special values. Larger than any normal number of a row, and small
enough that an exponential of it, times a mask's zero, is zero and not NaN."""
_FEWEST = 2
"""Cases that are made whatever memory they take."""
PARKED_BYTES = 256 << 20
"""Larger cases keep their truth, four times a 16-bit output, and eager's result in the host's memory, and pay a second
for each look at them. Of 115 GB that the judge of the triangle update's seven shapes held on an H200 40 were truths;
with those parked, 11 of an H100's 79 GiB were results of eager."""
_COMPUTED_IN_FP32 = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Types whose honest kernels compute in float32. What cancels there is as far off in 16 bits: two tokens' gradients of
one row, 1,000 times as large as other rows, left 3 % of a row's size where eager left nothing, by luck (measured)."""
_FEW_SAMPLES = 1024.0
"""Of rounding (`samples`): what more of them have in common is under a sixteenth of one rounding's error."""
_ROUNDINGS = 16.0
"""Roundings that one operation may hide: as many as `numerics` accepts of any float32 result (12 to 21 in a sequential
sum, measured), here times what one rounding of each operation does to this result. Softmax's gradient on rows that are
nearly one-hot, from a sum that was sequential, is 10 times as far off as by one (measured)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One draw of inputs with everything needed to judge an output."""

    family: str
    inputs: tuple[Any, ...]
    truth: tuple[torch.Tensor, ...]
    """fp64 results on the already rounded inputs and parameters, so that both sides see the same bits. In the host's
    memory after `parked`: see `exact`."""
    eager: tuple[torch.Tensor, ...]
    """In the host's memory after `parked`: see `honest`."""
    tolerances: tuple[Tolerance, ...]
    names: tuple[str, ...]
    """What each output is called in reports: `output0`, or `grad:weight` for a gradient."""
    hits: tuple[torch.Tensor | None, ...]
    """For outputs whose rows are selected by an index input: how often each row is."""
    changed: tuple[bool, ...] = ()
    """For each input: whether the reference itself writes into it, so that a candidate may too."""
    unsure: tuple[torch.Tensor | None, ...] = ()
    """For each output of the special family: where an infinity may have either sign, or be NaN, or NaN an infinity."""
    parked_from: tuple[torch.device, ...] = ()
    """The device of each output, where they wait in the host's memory."""

    @property
    def device(self) -> torch.device:
        """Where it is judged."""
        return self._device_of(0)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept of it in the memory of the device that it is for."""
        kept = [*tensors_of(self.inputs), *self.truth, *self.eager]
        return sum(tensor.nbytes for tensor in kept if tensor.device == self.device)

    @property
    def finite(self) -> bool:
        """Whether this draw lies in the reference's domain: mostly finite (log of a negative number is not)."""
        return all(float(torch.isfinite(exact).double().mean()) > 0.999 for exact in self.truth if exact.numel())

    def judge(self, outputs: tuple[torch.Tensor, ...]) -> list[Comparison]:
        """Compare every output with its truth."""
        places = range(len(self.truth))
        return [self._compared(index, output) for index, output in zip(places, outputs, strict=True)]

    def _compared(self, index: int, output: torch.Tensor) -> Comparison:
        """One output with its truth: on a device no other's is there meanwhile."""
        unsure = self.unsure[index] if self.unsure else None
        exact, honest = self.exact(index), self.honest(index)
        return compare(output, exact, honest, self.tolerances[index], self.hits[index], unsure)

    def exact(self, index: int) -> torch.Tensor:
        """One output's truth, where it is judged."""
        return self.truth[index].to(self._device_of(index))

    def honest(self, index: int) -> torch.Tensor:
        """One output as eager computes it, likewise."""
        return self.eager[index].to(self._device_of(index))

    def parked(self) -> Case:
        """The same with truth and eager's results in the host's memory, from where a comparison takes one output's at a
        time."""
        devices = tuple(map(self._device_of, range(len(self.eager))))
        return replace(
            self, truth=tuple(map(parked, self.truth)), eager=tuple(map(parked, self.eager)), parked_from=devices
        )

    def _device_of(self, index: int) -> torch.device:
        return self.parked_from[index] if self.parked_from else self.eager[index].device


class Truth:
    """The fp64 twin of one workload's reference."""

    def __init__(self, instance: Instance, precision: Precision, domains: Mapping[str, Domain]) -> None:
        self.instance, self.precision, self.domains = instance, precision, domains
        self._exact = copy.deepcopy(instance.model).to(torch.float64)

    def with_state(self, state: Mapping[str, torch.Tensor]) -> Truth:
        """The truth of the same reference with some parameters replaced."""
        model = copy.deepcopy(self.instance.model)
        model.load_state_dict(dict(state), strict=False)
        return Truth(replace(self.instance, model=model), self.precision, self.domains)

    def case(self, family: str, inputs: tuple[Any, ...]) -> Case:
        """The truth, the eager result and the tolerances for these inputs. Raises ReferenceFailed."""
        # The reference is handed copies: one that writes into its arguments must not change what candidates see.
        handed = copied(inputs)
        with unmoved(self.instance.model):
            eager = call_reference(self.instance.call, handed)
        changed = tuple(
            isinstance(value, torch.Tensor) and not same_bits(value, after)
            for value, after in zip(inputs, handed, strict=True)
        )
        del handed
        truth = self._evaluate(self._exact, inputs)
        nans = [exact.isnan() for exact in truth] if family == families.SPECIAL else []
        if family == families.SPECIAL:
            truth = self._without_idle_specials(truth, inputs)
            truth = self._without_idle_nans(truth, inputs)
            truth = self._without_skipped(truth, inputs)
        hits = tuple(self._hits(inputs, exact) for exact in truth)
        limits = self._limits(inputs, truth, eager, hits)
        for others in (self._autocast, self._without_overflow):
            sides = zip(limits, others(inputs, truth, eager), truth, hits, strict=True)
            limits = tuple(_loosened(limit, result, exact, counts) for limit, result, exact, counts in sides)
        limits = self._with_common_roundings(limits, inputs, truth, eager)
        limits = self._with_noise(limits, inputs, truth, eager, hits)
        unsure = self._unsure(inputs, truth, nans, limits) if family == families.SPECIAL else ()
        return Case(family, inputs, truth, eager, limits, self._names(len(truth)), hits, changed, unsure)

    def _limits(
        self,
        inputs: tuple[Any, ...],
        truth: tuple[torch.Tensor, ...],
        eager: tuple[torch.Tensor, ...],
        hits: tuple[torch.Tensor | None, ...],
    ) -> tuple[Tolerance, ...]:
        """Of each output: between the errors of honest results (eager's, and those of other roundings) and that of the
        same graph one precision lower. One of these results lives at a time: all of the triangle update's together
        were 27 times its inputs, which no H100 holds."""
        floats = [place for place, result in enumerate(eager) if widened(result).is_floating_point()]
        accepts = {place: _honest_error(eager[place], truth[place], hits[place]) for place in floats}
        for draw in range(DRAWS):
            for place, error in self._rounding_errors(draw, inputs, truth, eager, hits).items():
                accepts[place] = max(accepts[place], _ROUNDINGS * error)
        degraded = self._evaluate(self._degraded(), self._degrade_all(inputs))
        limits = [Tolerance(0.0, 0.0, 0.0, sees_precision=True)] * len(eager)
        for place in floats:
            dtype = eager[place].dtype
            reject = _honest_error(representable(degraded[place], dtype), truth[place], hits[place], dtype)
            limit = tolerance(accepts[place], reject, working_type(dtype, self.precision))
            limits[place] = with_elements(limit, _honest_elements(eager[place], truth[place]))
        return tuple(limits)

    def _rounding_errors(
        self,
        draw: int,
        inputs: tuple[Any, ...],
        truth: tuple[torch.Tensor, ...],
        eager: tuple[torch.Tensor, ...],
        hits: tuple[torch.Tensor | None, ...],
    ) -> dict[int, float]:
        """Of each output of floats: the error of another honest rounding than eager's, if there is one."""
        drawn = self._rounded(inputs, eager, draw) or ()
        return {
            place: _rounding_error(result, truth[place], hits[place], eager[place].dtype)
            for place, result in enumerate(drawn)
            if widened(eager[place]).is_floating_point()
        }

    def _hits(self, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        params = self.instance.workload.params
        limits = {name: domain.limit(params) for name, domain in self.domains.items() if domain.kind == "index"}
        bounds = {name: limit for name, limit in limits.items() if limit is not None}
        return row_hits(inputs, self.instance.arguments, bounds, output)

    def _rounded(
        self, inputs: tuple[Any, ...], eager: tuple[torch.Tensor, ...], draw: int
    ) -> tuple[torch.Tensor, ...] | None:
        """The results of another honest rounding than eager's, in float32 arithmetic. 16-bit inputs do not move: half a
        unit of theirs is a cheat's error, and an honest kernel's intermediates are wider. None of other types, or where
        the reference refuses what moved inputs lead to, or answers in another shape."""
        kinds = {value.dtype for value in (*eager, *inputs) if _is_float(value)}
        if not kinds or not kinds <= _COMPUTED_IN_FP32:
            return None
        moves = kinds == {torch.float32}
        near = tuple(moved(value.double(), draw) if moves and _is_float(value) else value for value in inputs)
        try:
            with FaithfulRounding(draw):
                result = self._evaluate(self._exact, near)
        except ReferenceFailed:
            return None
        same = all(one.shape == other.shape for one, other in zip(result, eager, strict=True))
        return result if same else None

    def _autocast(
        self, inputs: tuple[Any, ...], _truth: tuple[torch.Tensor, ...], eager: tuple[torch.Tensor, ...]
    ) -> list[torch.Tensor | None]:
        """What autocast gives in place of each float32 output, at the 16 bits that the policy allows; nothing where it
        allows none, for other outputs, and where the reference refuses."""
        none: list[torch.Tensor | None] = [None] * len(eager)
        narrow = SIXTEEN_BITS.get(self.precision.compute)
        if narrow is None:
            return none
        try:
            with unmoved(self.instance.model), torch.autocast(eager[0].device.type, dtype=narrow):
                found = call_reference(self.instance.call, copied(inputs))
        except ReferenceFailed:
            return none
        if [one.shape for one in found] != [one.shape for one in eager]:
            return none
        return [one if other.dtype == torch.float32 else None for one, other in zip(found, eager, strict=True)]

    def _with_common_roundings(
        self,
        limits: tuple[Tolerance, ...],
        inputs: tuple[Any, ...],
        truth: tuple[torch.Tensor, ...],
        eager: tuple[torch.Tensor, ...],
    ) -> tuple[Tolerance, ...]:
        """Tolerances that admit as bias what other roundings to the policy's 16 bits have in common, where a truth is
        few numbers again and again. A norm over one channel leaves one number in 131,072 places; autocast was less
        than 0.05 % off there by luck, and an honest kernel 0.66 %, 1.7 roundings to bf16 (measured)."""
        narrow = SIXTEEN_BITS.get(self.precision.compute)
        if narrow is None:
            return limits
        few = [
            place
            for place, (exact, result) in enumerate(zip(truth, eager, strict=True))
            if result.dtype == torch.float32 and exact.dim() > 1 and samples(exact, narrow) < _FEW_SAMPLES
        ]
        found = list(limits)
        for draw in range(DRAWS if few else 0):
            with FaithfulRounding(draw, narrow):
                other = self._evaluate(self._exact, inputs)
            for place in few:
                mean, _spread = bias(other[place], truth[place]) or (0.0, 0.0)
                found[place] = replace(found[place], bias=max(found[place].bias, abs(mean)))
        return tuple(found)

    def _with_noise(
        self,
        limits: tuple[Tolerance, ...],
        inputs: tuple[Any, ...],
        truth: tuple[torch.Tensor, ...],
        eager: tuple[torch.Tensor, ...],
        hits: tuple[torch.Tensor | None, ...],
    ) -> tuple[Tolerance, ...]:
        """Tolerances of 16-bit outputs that admit in each slice, and in single elements, what honest roundings leave
        there, where eager's errors are uneven. In a row of 64 gradients of weights one term of 10,000 times the others
        was itself a sum that cancels: eager was 0.044 off by luck, other roundings 0.02 to 0.36, and an honest kernel
        0.228, of 0.203 allowed (measured)."""
        places = [
            place
            for place, (result, exact) in enumerate(zip(eager, truth, strict=True))
            if result.dtype in SIXTEEN_BITS.values() and uneven(*_sides(result, exact, result.dtype), hits[place])
        ]
        found = list(limits)
        for place, result in self._honest_results(inputs, eager, places):
            dtype = eager[place].dtype
            sides = _sides(result, truth[place], dtype)
            found[place] = with_noise(found[place], slice_noise(*sides, hits[place]), element_error(*sides, dtype))
        return tuple(found)

    def _honest_results(
        self, inputs: tuple[Any, ...], eager: tuple[torch.Tensor, ...], places: list[int]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """(place, result) of 16-bit outputs at these places: eager's, and those of other roundings to as many bits."""
        yield from ((place, eager[place]) for place in places)
        for narrow in {eager[place].dtype for place in places}:
            for draw in range(DRAWS):
                try:
                    with FaithfulRounding(draw, narrow):
                        drawn = self._evaluate(self._exact, inputs)
                except ReferenceFailed:
                    return
                same = all(one.shape == other.shape for one, other in zip(drawn, eager, strict=True))
                yield from ((place, drawn[place]) for place in places if same and eager[place].dtype == narrow)

    def _without_overflow(
        self, inputs: tuple[Any, ...], truth: tuple[torch.Tensor, ...], eager: tuple[torch.Tensor, ...]
    ) -> list[torch.Tensor | None]:
        """In place of each 16-bit output that is mostly NaN or infinite in eager, and finite in truth: what roundings
        to as many bits make of it. Eager is no measure of honest arithmetic there: a kernel that stays finite where
        X (X^T Y) is beyond 65,504 has gradients that are 3 % off in rows that cancel (measured)."""
        lost = [_lost(result, exact) for result, exact in zip(eager, truth, strict=True)]
        if not any(lost):
            return [None] * len(eager)
        narrow = next(result.dtype for result, gone in zip(eager, lost, strict=True) if gone)
        with FaithfulRounding(0, narrow):
            found = self._evaluate(self._exact, inputs)
        return [one if gone else None for one, gone in zip(found, lost, strict=True)]

    def _tamed(self, inputs: tuple[Any, ...], around: float) -> tuple[torch.Tensor, ...]:
        """The truth with numbers around this one in place of special values."""
        return self._evaluate(self._exact, _all_tamed(inputs, around, _special))

    def _unsure(
        self,
        inputs: tuple[Any, ...],
        truth: tuple[torch.Tensor, ...],
        nans: list[torch.Tensor],
        limits: tuple[Tolerance, ...],
    ) -> tuple[torch.Tensor, ...]:
        """Where an infinity may have either sign, or be NaN, or NaN an infinity. `nans`: where the formula has some."""
        _zero, *large = _STAND_INS  # of either sign
        found = tuple(map(unsure_signs, *(self._tamed(inputs, around) for around in large), limits))
        for others in (self._made_of_infinities(truth, inputs), self._made_of_underflow(truth, nans, inputs)):
            found = tuple(map(torch.logical_or, found, others))
        return tuple(places & ~torch.isfinite(exact) for places, exact in zip(found, truth, strict=True))

    def _without_idle_specials(
        self, truth: tuple[torch.Tensor, ...], inputs: tuple[Any, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The truth, finite where a special value has no part in the result.

        Causal attention multiplies what it masks by zero, so a NaN there makes NaN of rows that do not depend on it; a
        kernel that skips masked blocks gives numbers, and is right. Such places are those where the result is the same
        whatever numbers stand in for the special ones: ordinary ones, and large ones of either sign, because a maximum
        does not change with a number that is not its largest. Nor has NaN to be where every score of a softmax is -inf:
        fused attention has zero there.
        """
        with EmptySoftmax():
            empty = self._evaluate(self._exact, inputs)
        truth = tuple(torch.where(exact.isnan(), other, exact) for exact, other in zip(truth, empty, strict=True))
        del empty
        first, *others = _STAND_INS
        instead = self._tamed(inputs, first)
        idle = [~torch.isfinite(exact) for exact in truth]
        for around in others:
            for place, result in enumerate(self._tamed(inputs, around)):
                idle[place] &= instead[place] == result
        return tuple(map(torch.where, idle, instead, truth))

    def _without_idle_nans(self, truth: tuple[torch.Tensor, ...], inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """The truth with what infinities make of it where a NaN has no part in the result: in a row of causal attention
        that an infinity decides, NaN of a masked key is as idle as it is in others."""
        values = [widened(value) for value in inputs if _is_float(value)]
        if not (
            any(bool(value.isnan().any()) for value in values) and any(bool(value.isinf().any()) for value in values)
        ):
            return truth
        first, *others = _STAND_INS
        with EmptySoftmax():
            instead = self._evaluate(self._exact, _all_tamed(inputs, first, _nan))
            idle = [exact.isnan() & ~result.isnan() for exact, result in zip(truth, instead, strict=True)]
            for around in others:
                for place, result in enumerate(self._evaluate(self._exact, _all_tamed(inputs, around, _nan))):
                    idle[place] &= instead[place] == result
        return tuple(map(torch.where, idle, instead, truth))

    def _without_skipped(self, truth: tuple[torch.Tensor, ...], inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """The truth with what a kernel that skips zeros makes of its NaN: in a row of causal attention that an infinity
        decides, another of a masked key is as idle as it is in others (48 of a million gradients of queries)."""
        if not any(bool(exact.isnan().any()) for exact in truth):
            return truth
        with EmptySoftmax(), SkippedZeros():
            skipped = self._evaluate(self._exact, inputs)
        return tuple(torch.where(exact.isnan(), other, exact) for exact, other in zip(truth, skipped, strict=True))

    def _made_of_infinities(self, truth: tuple[torch.Tensor, ...], inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        """Where the truth is NaN with infinities among the inputs and not without them. Whether they make NaN or an
        infinity depends on the order of the steps: a scan that multiplies decays first takes 0 times infinity where one
        that goes token by token takes 0.5 times infinity (46 of 2,560 places of a selective scan's gradients)."""
        without = self._evaluate(self._exact, _all_tamed(inputs, 0.0, _infinite))
        return [exact.isnan() & ~other.isnan() for exact, other in zip(truth, without, strict=True)]

    def _made_of_underflow(
        self, truth: tuple[torch.Tensor, ...], nans: list[torch.Tensor], inputs: tuple[Any, ...]
    ) -> list[torch.Tensor]:
        """Where the truth is infinite, and NaN where results too small for float32 are zero. With two infinities at one
        place of a selective scan's gradient, one of them behind decays of e^-108, a parallel scan has NaN there, and so
        has the reference itself with another length of its chunks. Nowhere, if the reference refuses such zeros."""
        none = [torch.zeros_like(exact, dtype=torch.bool) for exact in truth]
        if not {value.dtype for value in inputs if _is_float(value)} <= _COMPUTED_IN_FP32:
            return none
        try:
            with Underflow():
                found = self._evaluate(self._exact, inputs)
        except ReferenceFailed:
            return none
        if [one.shape for one in found] != [one.shape for one in truth]:
            return none
        return [one.isnan() & ~own & exact.isinf() for one, own, exact in zip(found, nans, truth, strict=True)]

    def _names(self, count: int) -> tuple[str, ...]:
        instance = self.instance
        if not instance.backward:
            return tuple(f"output{index}" for index in range(count))
        leaves = [
            name
            for name, value in zip(instance.arguments, instance.like[: instance.forward_inputs], strict=False)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        gradients = [f"grad:{name}" for name in (*leaves, *instance.parameters)]
        return (*(f"output{index}" for index in range(count - len(gradients))), *gradients)

    def _evaluate(self, model: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        wide = tuple(value.to(torch.float64, copy=True) if _is_float(value) else _copy(value) for value in inputs)
        return tuple(output.to(torch.float64) for output in call_reference(self.instance.callable(model), wide))

    def _degraded(self) -> torch.nn.Module:
        model = copy.deepcopy(self._exact)
        honest = dict(self.instance.model.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self._degrade(parameter, honest[name].dtype))
        return model

    def _degrade_all(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            self._degrade(value, value.dtype) if isinstance(value, torch.Tensor) else value for value in inputs
        )

    def _degrade(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A value that is stored as `dtype`, one precision below what the policy lets arithmetic round to."""
        return degrade(value, working_type(dtype, self.precision), tf32_allowed=self.precision.tf32)


@contextmanager
def unmoved(model: torch.nn.Module) -> Iterator[None]:
    """Undo what calls do to buffers: running statistics of drawn values would drift to 10^5 and hide errors."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])


def prepare_cases(
    problem: Problem, truth: Truth, device: str, seed: int, count: int, budget_bytes: float = math.inf
) -> list[Case]:
    """Up to `count` cases of different families, most powerful first; `special` (NaN, infinities) comes last if at all.
    Two more, after the first, may have indices, and what may not be drawn, of two draws of the file's own get_inputs.

    Where more than `_FEWEST` of them would not fit into `budget_bytes`, the least powerful are left out, but `special`
    is not: no other has NaN. A family that lies outside of the reference's domain is left out; with none left, the
    file's own inputs are used. Raises ReferenceFailed when the reference is random or fails.
    """
    instance, domains = truth.instance, truth.domains
    generator = torch.Generator(device=device).manual_seed(seed)
    cases: list[Case] = []
    first, *others = families.applicable(instance.arguments, domains, instance.like)
    listed = families.as_listed(instance.arguments, domains, instance.like)
    count, fewest = count + len(listed), _FEWEST + len(listed)
    fitting = count
    for family in (first, *listed, *others):
        if len(cases) == count:
            break
        if len(cases) >= fitting and family != families.SPECIAL:
            continue
        if family == families.OWN:
            drawn = problem.example_inputs(instance, device, seed)
        else:
            like = _another(problem, instance, device, seed + 1) if family == families.LISTED_MIXED else instance.like
            drawn = families.draw(like, instance.arguments, domains, instance.workload.params, family, generator)
        case = truth.case(family, drawn)
        if case.finite or family == families.SPECIAL:
            fitting = max(fewest, int(min(count, budget_bytes / case.nbytes)))
            cases.append(case.parked() if case.nbytes > PARKED_BYTES else case)
    if not any(case.finite for case in cases):
        cases = [truth.case(families.OWN, problem.example_inputs(instance, device, seed + step)) for step in range(2)]
    with unmoved(instance.model):
        case = cases[0]
        refuse_random(problem, instance, case.inputs, tuple(map(case.honest, range(len(case.eager)))))
    return _relaxed(cases)


def _another(problem: Problem, instance: Instance, device: str, seed: int) -> tuple[Any, ...]:
    """Another draw of the file's own get_inputs; the one that is there where sizes are drawn too."""
    drawn = problem.example_inputs(instance, device, seed)
    sizes = [[(each.shape, each.dtype, each.stride()) for each in tensors_of(one)] for one in (drawn, instance.like)]
    return drawn if sizes[0] == sizes[1] else instance.like


def _honest_error(
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


def _honest_elements(result: torch.Tensor, truth: torch.Tensor) -> float:
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


def _relaxed(cases: list[Case]) -> list[Case]:
    """Families that cannot see precision get at least the tolerance of the strictest that can."""
    if not cases:
        return cases
    seeing = [
        min((case.tolerances[index].threshold for case in cases if case.tolerances[index].sees_precision), default=0.0)
        for index in range(len(cases[0].tolerances))
    ]
    return [
        replace(
            case, tolerances=tuple(relaxed(limit, wide) for limit, wide in zip(case.tolerances, seeing, strict=True))
        )
        for case in cases
    ]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type hold the same bytes: NaN equals NaN here."""
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def _all_tamed(
    inputs: tuple[Any, ...], bias: float, wild: Callable[[torch.Tensor, torch.dtype], torch.Tensor]
) -> tuple[Any, ...]:
    """Inputs with normal numbers around `bias` wherever `wild`, given widened values and their own type, says so."""

    def tamed(value: Any) -> Any:
        if not _is_float(value):
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


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same with tensors of their own memory."""
    return tuple(map(_copy, inputs))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
