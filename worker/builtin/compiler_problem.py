"""What a compiler seed needs to know of a problem: a fake instance of each workload, and what its call passes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from worker.builtin.trace import TraceError, Workload, build_model, call_accepting

_MAX_REASON_CHARS = 500


class NoCompilerSeed(Exception):
    """Inductor gave nothing that can stand alone for this reference. Rely on recipes and models for it."""


@contextmanager
def as_no_seed() -> Iterator[None]:
    """Turn whatever is raised inside into NoCompilerSeed."""
    try:
        yield
    except NoCompilerSeed:
        raise
    except TraceError as error:
        raise NoCompilerSeed(str(error)) from error
    except Exception as error:  # noqa: BLE001 - the user's forward runs here, and Inductor raises whatever it likes
        raise NoCompilerSeed(f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]) from error


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within, `owner.name` is `value`: torch has no other way in."""
    before = inspect.getattr_static(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a workload passes: its tensors (on the meta device) and numbers by key, and the constructor's arguments."""

    state: dict[str, torch.Tensor]
    inputs: dict[str, Any]
    init: str

    @property
    def elements(self) -> int:
        """The size of its inputs, to tell large workloads from small ones."""
        return sum(value.numel() for value in self.inputs.values() if isinstance(value, torch.Tensor))


def signature(namespace: Mapping[str, Any], workload: Workload) -> Signature:
    """The signature of a workload. Raises NoCompilerSeed."""
    with as_no_seed(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model, inputs = instance(namespace, workload)
        init = repr(call_accepting(namespace["get_init_inputs"], dict(workload.params)))
        state = {key: _meta(value) for key, value in state_of(model).items()}
        return Signature(state, {key: _meta(value) for key, value in inputs.items()}, init)


def instance(namespace: Mapping[str, Any], workload: Workload) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model of a workload and its inputs by the names of forward's arguments."""
    params = dict(workload.params)
    model = build_model(namespace, params)
    inputs = list(call_accepting(namespace["get_inputs"], params))
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    if len(names) < len(inputs):
        raise NoCompilerSeed("forward takes a starred argument")
    return model, dict(zip(names, inputs, strict=False))


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by state dict key."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with no_dispatch():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
