"""A reference in fp64 beside the one that it was made of: its results, and what other arithmetic makes of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from problems.catalog import Precision
from worker.judge.numerics.precision import degrade, working_type
from worker.judge.reference.problem import Instance, call_reference
from worker.judge.verdict import ReferenceFailed
from worker.runner.values import tensors_of

COMPUTED_IN_FP32 = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Types whose honest kernels compute in float32. What cancels there is as far off in 16 bits: two tokens' gradients of
one row, 1,000 times as large as other rows, left 3 % of a row's size where eager left nothing, by luck (measured)."""


class Twin:
    """The fp64 twin of one instance's model."""

    def __init__(self, instance: Instance, precision: Precision) -> None:
        self.instance, self.precision = instance, precision
        self._exact = copy.deepcopy(instance.model).to(torch.float64)

    def results(self, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """Outputs in fp64, on inputs of any type. Raises ReferenceFailed."""
        return self._evaluate(self._exact, inputs)

    def results_if_alike(
        self, inputs: tuple[Any, ...], like: tuple[torch.Tensor, ...], arithmetic: AbstractContextManager[object]
    ) -> tuple[torch.Tensor, ...] | None:
        """The same while `arithmetic` is active; None where the reference refuses what that leads to, or answers in
        other shapes than `like`."""
        try:
            with arithmetic:
                found = self.results(inputs)
        except ReferenceFailed:
            return None
        return found if [one.shape for one in found] == [one.shape for one in like] else None

    def degraded_results(self, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """Outputs in fp64, of inputs and parameters one precision below what the policy lets arithmetic round to."""
        model = copy.deepcopy(self._exact)
        honest = dict(self.instance.model.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(self._degrade(parameter, honest[name].dtype))
        coarse = tuple(self._degrade(one, one.dtype) if isinstance(one, torch.Tensor) else one for one in inputs)
        return self._evaluate(model, coarse)

    def eager(
        self, inputs: tuple[Any, ...], arithmetic: AbstractContextManager[object] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Outputs of the reference itself, which may write into its `inputs`. Raises ReferenceFailed."""
        with unmoved(self.instance.model), arithmetic or nullcontext():
            return call_reference(self.instance.call, inputs)

    def _evaluate(self, model: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        wide = tuple(value.to(torch.float64, copy=True) if is_float(value) else _copy(value) for value in inputs)
        return tuple(output.to(torch.float64) for output in call_reference(self.instance.callable(model), wide))

    def _degrade(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A value that is stored as `dtype`, one precision lower."""
        return degrade(value, working_type(dtype, self.precision), tf32_allowed=self.precision.tf32)


@contextmanager
def unmoved(model: torch.nn.Module) -> Iterator[None]:
    """Undo what calls do to buffers: running statistics of drawn values would drift to 10^5 and hide errors."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])


def outputs_of_their_own(instance: Instance, inputs: tuple[Any, ...]) -> list[int]:
    """The outputs of the reference that share no memory with these inputs, which it may write into."""
    own = copied(inputs)
    with unmoved(instance.model):
        outputs = call_reference(instance.call, own)
    theirs = {each.untyped_storage().data_ptr() for each in tensors_of(own)}
    return [index for index, output in enumerate(outputs) if output.untyped_storage().data_ptr() not in theirs]


def is_float(value: Any) -> bool:
    """Whether it is a tensor of floats."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type hold the same bytes: NaN equals NaN here."""
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same with tensors of their own memory."""
    return tuple(map(_copy, inputs))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
