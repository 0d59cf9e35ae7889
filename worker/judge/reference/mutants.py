"""Wrong answers to a reference, made on purpose: what passes as one of them, a judgement cannot tell from right.

They are the cheapest cheats: an answer that ignores its inputs, its parameters or most of its data, and the same graph
in a lower precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from problems.catalog import Precision
from worker.judge.numerics.case import Case
from worker.judge.numerics.precision import degrade, widened, working_type
from worker.judge.reference.problem import Instance, call_reference

PRECISION = "one precision lower"
_SAMPLE = 100
"""A sample keeps one row (or column) in a hundred."""

Outputs = tuple[torch.Tensor, ...]


def mutants(
    instance: Instance, case: Case, other: Outputs, initial: torch.nn.Module, precision: Precision
) -> Iterator[tuple[str, Outputs]]:
    """(name, outputs) of every wrong answer that this case allows.

    `other` is the reference's result on another draw of the same family, `initial` its model with the parameters that
    the constructor gives. A mutant that equals the right answer bit for bit by construction is left out.
    """
    yield "zeros", tuple(torch.zeros_like(output) for output in case.eager)
    yield "ones", tuple(torch.ones_like(output) for output in case.eager)
    yield "a constant, the mean of another output", tuple(_mean_of(output) for output in other)
    yield "the output of other inputs", other
    echoed = [_echo(output, case.inputs) for output in case.eager]
    if all(found is not None for found in echoed):
        yield "an input itself", tuple(found for found in echoed if found is not None)
    if any(True for _parameter in initial.parameters()):
        yield "the initial parameters", _call(instance.callable(initial), case.inputs)
    if _reduces(case):
        for name, dimension in (("rows", 0), ("columns", -1)):
            sampled = tuple(_sampled(value, dimension) for value in case.inputs)
            if any(one is not two for one, two in zip(sampled, case.inputs, strict=True)):
                yield f"1 % of the {name}, repeated", _call(instance.call, sampled)
    yield PRECISION, _degraded(instance, case, precision)


def _call(call: Callable[..., Any], inputs: tuple[Any, ...]) -> Outputs:
    return call_reference(call, tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))


def _mean_of(output: torch.Tensor) -> torch.Tensor:
    usable = widened(output)
    usable = usable[torch.isfinite(usable)] if output.is_floating_point() else usable
    mean = float(usable.double().mean()) if usable.numel() else 0.0
    return torch.full_like(output, mean if output.is_floating_point() else round(mean))


def _echo(output: torch.Tensor, inputs: tuple[Any, ...]) -> torch.Tensor | None:
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.shape == output.shape and not value.is_complex():
            return value.to(output.dtype)
    return None


def _reduces(case: Case) -> bool:
    """Whether some output has far fewer elements than some input: only then can a sample stand for the whole."""
    inputs = [value.numel() for value in case.inputs if isinstance(value, torch.Tensor)]
    return bool(inputs) and 16 * min(output.numel() for output in case.eager) <= max(inputs)


def _sampled(value: Any, dimension: int) -> Any:
    """The first hundredth along a dimension, repeated over all of it."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape[dimension] < _SAMPLE:
        return value
    if dimension == -1 and value.dim() == 1:
        return value
    size = value.shape[dimension]
    places = torch.arange(size, device=value.device) % max(1, size // _SAMPLE)
    return value.index_select(dimension % value.dim(), places)


def _degraded(instance: Instance, case: Case, precision: Precision) -> Outputs:
    """The whole graph on inputs and parameters of one precision lower, evaluated in float64, in the outputs' types."""
    model = copy.deepcopy(instance.model)
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    model = model.to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(degrade(parameter, working_type(kinds[name], precision), tf32_allowed=False))
    inputs = tuple(
        degrade(value, working_type(value.dtype, precision), tf32_allowed=False).double()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for value in case.inputs
    )
    outputs = _call(instance.callable(model), inputs)
    return tuple(output.to(honest.dtype) for output, honest in zip(outputs, case.eager, strict=True))
