"""The reference: load a problem file in the judge, draw its parameters, and hand out models and example inputs."""

from __future__ import annotations

import inspect
import linecache
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from problems.catalog import Outline, Param, Spec, Workload, outline
from worker.judge.reference import footprint
from worker.judge.reference.blame import FILE, blame, return_line
from worker.judge.verdict import ReferenceFailed
from worker.runner.step import Step

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Instance:
    """One workload's reference: a model with redrawn parameters, and what it was made from."""

    workload: Workload
    init: tuple[Any, ...]
    model: torch.nn.Module
    like: tuple[Any, ...]
    """Example inputs from get_inputs (then cotangents): shapes, dtypes, strides and ranges count; values are drawn."""
    arguments: tuple[str, ...]
    """Names of forward's arguments, one per input; a cotangent is called `grad_output0` and so on."""
    forward_inputs: int
    """How many of the inputs are forward's own; the others are cotangents of a problem with a backward."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters whose gradients are outputs; empty without a backward."""

    @property
    def backward(self) -> bool:
        """Whether a call is forward and backward."""
        return len(self.like) > self.forward_inputs

    def callable(self, model: torch.nn.Module) -> Callable[..., Any]:
        """What one call of `model` (this instance's own or a twin of it) is: forward, or forward and backward."""
        return Step(model, model, self.parameters, self.forward_inputs) if self.backward else model

    @property
    def call(self) -> Callable[..., Any]:
        """One call of the reference."""
        return self.callable(self.model)


class Problem:
    """A loaded reference file."""

    def __init__(self, source: str, name: str) -> None:
        """Raises problems.catalog.ProblemError for a file without Model, ReferenceFailed for one that does not run."""
        self.outline: Outline = outline(source, name)
        self.spec: Spec = self.outline.spec
        linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
        self._module = types.ModuleType("reference")
        with blame("the file does not run"):
            exec(compile(source, FILE, "exec"), self._module.__dict__)

    def workloads(self, hardware: str) -> tuple[Workload, ...]:
        """The workloads meant for this hardware, smallest problem first as the file lists them."""
        return self.spec.workloads_for(hardware)

    def instance(
        self,
        workload: Workload,
        device: str,
        seed: int,
        init: tuple[Any, ...] | None = None,
        *,
        backward: bool | None = None,
    ) -> Instance:
        """Build one workload's model on `device`, its parameters drawn from `seed`. `init`: what to make it with in
        place of what get_init_inputs gives. `backward`: whether a call has one, whatever the SPEC
        says."""
        self.check_size(workload, device)
        torch.manual_seed(seed)
        with blame(f"get_init_inputs or Model failed for workload {workload.name!r}"):
            init = tuple(self._call("get_init_inputs", workload)) if init is None else init
            model = self._module.Model(*init).to(device)
        with blame(f"get_inputs failed for workload {workload.name!r}"):
            like = tuple(_to(value, device) for value in self._call("get_inputs", workload))
        backward = self.spec.trains(workload) if backward is None else backward
        _redraw_parameters(model, torch.Generator(device=device).manual_seed(seed))
        for parameter in model.parameters():
            parameter.requires_grad_(backward and parameter.is_floating_point())
        names, forward_inputs = self._argument_names(len(like)), len(like)
        if not backward:
            return Instance(workload, init, model, like, names, forward_inputs)
        cotangents = cotangents_of(model, like)
        trained = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
        names += tuple(f"grad_output{index}" for index in range(len(cotangents)))
        return Instance(workload, init, model, (*like, *cotangents), names, forward_inputs, trained)

    def check_size(self, workload: Workload, device: str) -> None:
        """Raise ReferenceFailed when the workload cannot fit the device; nothing is allocated to find out."""
        found = self.footprint(workload)
        if found is not None:
            found.refuse_above(footprint.memory_bytes(device), workload.name, device)

    def footprint(self, workload: Workload) -> footprint.Footprint | None:
        """The bytes of a workload, or None when the reference does not run without values."""
        with blame(f"get_inputs failed for workload {workload.name!r}"):
            return footprint.estimate(lambda name: self._call(name, workload), self._module.Model)

    def without_values(self, workload: Workload, look: Callable[[torch.nn.Module, Any], _Found]) -> _Found | None:
        """What `look` finds of a workload's model and inputs on the meta device, or None as above."""
        return footprint.without_values(lambda name: self._call(name, workload), self._module.Model, look)

    def fresh_model(self, instance: Instance, device: str, seed: int) -> torch.nn.Module:
        """The workload's model as its constructor leaves it, with the initial parameters of `seed`."""
        torch.manual_seed(seed)
        with blame("Model failed"):
            model: torch.nn.Module = self._module.Model(*instance.init).to(device)
        for parameter in model.parameters():
            parameter.requires_grad_(self.spec.trains(instance.workload) and parameter.is_floating_point())
        return model

    def example_inputs(self, instance: Instance, device: str, seed: int) -> tuple[Any, ...]:
        """Another draw of the file's own get_inputs; cotangents are normal."""
        torch.manual_seed(seed)
        with blame("get_inputs failed"):
            own = tuple(_to(value, device) for value in self._call("get_inputs", instance.workload))
        return own + tuple(torch.randn_like(value) for value in instance.like[instance.forward_inputs :])

    def _call(self, function: str, workload: Workload) -> Any:
        accepted = inspect.signature(getattr(self._module, function)).parameters
        takes_any = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in accepted.values())
        params = {key: value for key, value in workload.params.items() if takes_any or key in accepted}
        return getattr(self._module, function)(**params)

    def parameters(self, workload: Workload) -> dict[str, Param]:
        """A workload's parameters, and get_inputs' defaults for those that it leaves out."""
        asked = inspect.signature(self._module.get_inputs).parameters
        defaults = {name: item.default for name, item in asked.items() if isinstance(item.default, int | float | str)}
        return {**defaults, **workload.params}

    def _argument_names(self, count: int) -> tuple[str, ...]:
        names = list(inspect.signature(self._module.Model.forward).parameters)[1:]
        names += [f"input{index}" for index in range(len(names), count)]
        return tuple(names[:count])


def cotangents_of(model: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Ones, contiguous, for each float that the reference returns for these inputs. Raises ReferenceFailed."""
    outputs = [output for output in call_reference(model, inputs) if output.is_floating_point()]
    return tuple(torch.ones_like(output, memory_format=torch.contiguous_format) for output in outputs)


def call_reference(call: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """Run a reference (`Instance.call`) and return its outputs as a tuple of tensors. Raises ReferenceFailed."""
    with blame("forward failed"), torch.no_grad():
        result = call(*inputs)
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            returns = "nothing" if output is None else f"a {type(output).__name__}"
            raise ReferenceFailed(
                f"{return_line(call)}forward returns {returns}; return a tensor or a tuple of tensors"
            )
    if not outputs:
        raise ReferenceFailed(f"{return_line(call)}forward returns nothing; return a tensor or a tuple of tensors")
    return outputs


def _to(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _redraw_parameters(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Move every parameter and float buffer off its initial value, so that none can be ignored or folded away.

    Identity initialisations (weights of one, biases of zero) hide kernels that never read their parameters.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
                parameter.add_((0.25 * _spread(parameter) * noise).to(parameter.dtype))
        for buffer in model.buffers():
            if buffer.is_floating_point() and buffer.numel():
                noise = torch.rand(buffer.shape, generator=generator, device=buffer.device)
                scaled = buffer * (1 + 0.25 * noise)  # keeps signs: a running variance stays positive
                shift = 0.0 if bool((buffer >= 0).all()) and bool((buffer > 0).any()) else 0.1
                buffer.copy_((scaled + shift * noise).to(buffer.dtype))


def _spread(tensor: torch.Tensor) -> float:
    if tensor.numel() < 2:
        return 1.0
    spread = float(tensor.float().std())
    return spread if spread > 0 else 1.0
