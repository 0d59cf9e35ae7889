"""The least that one call must move and compute, from the reference.

Bytes: the outputs, and those inputs and parameters that the outputs provably depend on: the share of non-zero entries
in one fp64 backward from random cotangents. An embedding reads few rows of its table, and a signature does not know
that. Integer inputs count as nothing, as no gradient can show that they are read; a gradient that is zero (behind a
ReLU) proves nothing either. So the count errs on the low side, which is the side of the candidate.

Operations: the reference's matrix products, counted by torch. Algebra may need fewer, so they are for reporting only.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from worker.judge.exhibits import Exhibit
from worker.judge.physics.operations import OperationCounter
from worker.judge.reference.problem import Instance

_PROBE_LIMIT_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}
"""Inputs beyond this are not probed: their fp64 graph takes about 20 times their bytes."""
_NOTHING = 1e-12
"""Relative to the largest gradient: what fp64 rounding leaves of terms that cancel."""


@dataclass(frozen=True, slots=True)
class Work:
    """One call of one workload."""

    output_bytes: int
    input_bytes: int
    """Of inputs and parameters that count."""
    flops: int
    """0 when the reference has no matrix products, or was not probed."""
    note: str = ""
    """Why inputs were not counted, when they were not."""

    @property
    def bytes_moved(self) -> int:
        """B_min."""
        return self.output_bytes + self.input_bytes


def least_work(exhibit: Exhibit) -> Work:
    """What a call of this workload must do, on the first case that is timed."""
    outputs = exhibit.output_bytes
    limit = _PROBE_LIMIT_BYTES[exhibit.cases[0].device.type]
    if exhibit.input_bytes > limit:
        return Work(outputs, 0, 0, f"inputs over {limit >> 20} MiB are not probed for what depends on them")
    try:
        needed, flops = _depended_on(exhibit.instance, exhibit.timed[0].inputs)
    except (RuntimeError, TypeError, NotImplementedError) as failure:  # no derivative, no memory, a fixed dtype
        return Work(outputs, 0, 0, f"the reference has no fp64 backward: {str(failure)[:120]}")
    return Work(outputs, needed, flops)


def _depended_on(instance: Instance, inputs: tuple[Any, ...]) -> tuple[int, int]:
    """(bytes of inputs and parameters that the outputs depend on, operations of the reference's matrix products)."""
    model = copy.deepcopy(instance.model).to(torch.float64)
    parameters = [parameter.requires_grad_() for parameter in model.parameters() if parameter.is_floating_point()]
    places = [
        place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    leaves = {place: inputs[place].detach().double().requires_grad_() for place in places}
    # Clones, because a reference may write into its arguments, and a leaf may not be written to.
    arguments = [leaves[place].clone() if place in leaves else _fresh(value) for place, value in enumerate(inputs)]
    with torch.enable_grad(), OperationCounter() as counter:
        outputs = _outputs_of(instance, model, arguments, parameters)
    wanted = [*leaves.values(), *parameters]
    gradients = _probe(outputs, wanted)
    sizes = [inputs[place].element_size() for place in places]
    sizes += [parameter.element_size() for parameter in instance.model.parameters() if parameter.is_floating_point()]
    needed = sum(_entries(gradient) * size for gradient, size in zip(gradients, sizes, strict=True))
    return needed, counter.total


def _outputs_of(
    instance: Instance, model: torch.nn.Module, arguments: list[Any], parameters: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Everything that a call returns, with its history: forward's outputs, then gradients where they are asked for."""
    own, cotangents = arguments[: instance.forward_inputs], arguments[instance.forward_inputs :]
    result = model(*own)
    outputs = [each for each in (result if isinstance(result, tuple | list) else (result,)) if _has_history(each)]
    if not instance.backward:
        return outputs
    wanted = [value for value in own if isinstance(value, torch.Tensor) and value.requires_grad] + parameters
    gradients = torch.autograd.grad(outputs, wanted, cotangents, create_graph=True, allow_unused=True)
    return outputs + [gradient for gradient in gradients if _has_history(gradient)]


def _probe(outputs: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor | None]:
    if not outputs:
        return [None] * len(wanted)
    generator = torch.Generator(device=outputs[0].device).manual_seed(1)
    cotangents = [
        torch.randn(output.shape, generator=generator, device=output.device, dtype=output.dtype) for output in outputs
    ]
    return list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))


def _entries(gradient: torch.Tensor | None) -> int:
    if gradient is None or not gradient.numel():
        return 0
    sizes = torch.nan_to_num(gradient.abs())
    return int((sizes > _NOTHING * sizes.max()).sum())


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _has_history(value: Any) -> bool:
    return _is_float(value) and bool(value.requires_grad)


def _fresh(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
