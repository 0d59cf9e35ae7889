"""The dispatch table: each certified workload of each kernel, with what a call must look like to be one of them.

Shapes, types and layouts are what the reference's own get_inputs, Model and forward give for the workload's parameters.
They are found at import by running those with fake tensors, which hold no data: milliseconds, whatever the sizes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .facts import KERNELS, PACKAGE, Kernel

reference = importlib.import_module(f"{PACKAGE}.reference")
"""The problem's file, untouched."""
_INIT = inspect.signature(reference.Model)


@dataclass(frozen=True)
class Like:
    """What a tensor must be like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[tuple[int, int], ...]
    """(dimension, stride) where the dimension is longer than 1: elsewhere strides say nothing."""
    full_strides: tuple[int, ...]


Init = tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""Arguments by place, and by name."""


@dataclass(frozen=True)
class Row:
    """One certified workload of one kernel."""

    number: int
    kernel: Kernel
    workload: str
    params: dict[str, Any]
    speedup: float
    """Against the fastest baseline, which `baseline` names."""
    ci95: tuple[float, float]
    baseline: str
    latency_us: float
    init: Init = ((), ())
    """The constructor's arguments, defaults included."""
    names: tuple[str, ...] = ()
    """Of parameters, then of buffers: what `state` is like."""
    state: tuple[Like, ...] = ()
    inputs: tuple[Any, ...] = ()
    """A Like for each tensor; other arguments as they are."""
    outputs: tuple[Like, ...] = ()
    container: type | None = None
    """What forward returns its outputs in; None: one tensor."""
    unusable: str = ""
    """Why no call can use the kernel for this workload."""

    @property
    def faster(self) -> bool:
        """Whether even the lower end of the 95 % interval of the speedup is a gain."""
        return self.ci95[0] > 1.0

    @property
    def label(self) -> str:
        """How explanations name it."""
        return f"{self.kernel.name} on {self.workload}"


def like(tensor: torch.Tensor) -> Like:
    """What this tensor is like."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    told = tuple((place, stride) for place, stride in enumerate(strides) if shape[place] > 1)
    return Like(shape, tensor.dtype, told, strides)


def bound_init(args: Sequence[Any], kwargs: dict[str, Any]) -> Init:
    """The constructor's arguments, defaults included and by place where they have one: so two calls that mean the same
    are equal."""
    bound = _INIT.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, tuple(sorted(bound.kwargs.items()))


def construct(kind: Callable[..., Any], init: Init) -> Any:
    """The reference or the drop-in, with these arguments."""
    return kind(*init[0], **dict(init[1]))


def tensors_of(module: torch.nn.Module) -> tuple[tuple[str, ...], list[torch.Tensor]]:
    """Names and tensors of a module: parameters, then buffers. A tensor that has two names is there twice."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return tuple(name for name, _tensor in named), [tensor for _name, tensor in named]


def called(function: Callable[..., Any], params: dict[str, Any]) -> list[Any]:
    """get_inputs or get_init_inputs with those of a workload's parameters that it takes."""
    accepted = inspect.signature(function).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in accepted.values())
    return list(function(**{key: value for key, value in params.items() if takes_any or key in accepted}))


def in_order(outputs: Any) -> list[Any]:
    """What forward returned, as a list."""
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def _rows() -> tuple[Row, ...]:
    rows: list[Row] = []
    for kernel in KERNELS:
        document = kernel.certificate()
        timed = {each["name"]: each for each in document["timing"]["workloads"]}
        for workload in document["problem"]["workloads"]:
            found = timed.get(workload["name"])
            if found is not None:
                rows.append(_row(len(rows), kernel, workload, found))
    return tuple(sorted(rows, key=lambda row: row.speedup, reverse=True))  # of two kernels for one call the faster


def _row(number: int, kernel: Kernel, workload: dict[str, Any], timed: dict[str, Any]) -> Row:
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in workload["params"].items()}
    low, high = timed["ci95"]
    known = (number, kernel, workload["name"], params, timed["speedup"], (low, high), timed["baseline"])
    try:
        return Row(*known, timed["latency_us"], **_shapes(params))
    except Exception as error:  # noqa: BLE001 - the reference is a user's file: whatever it raises is the reason
        why = f"its shapes cannot be found without data: {type(error).__name__}: {error}"
        return Row(*known, timed["latency_us"], unusable=why[:300])


def _shapes(params: dict[str, Any]) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        init = called(reference.get_init_inputs, params)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            model = reference.Model(*init)
            inputs = called(reference.get_inputs, params)
            names, state = tensors_of(model)
            given = [*state, *(value for value in inputs if isinstance(value, torch.Tensor))]
            before = [tensor._version for tensor in given]
            likes = tuple(like(value) if isinstance(value, torch.Tensor) else value for value in inputs)
            outputs = model(*inputs)
    written = [tensor._version for tensor in given] != before
    return {
        "init": bound_init(init, {}),
        "names": names,
        "state": tuple(like(tensor) for tensor in state),
        "inputs": likes,
        "outputs": tuple(like(tensor) for tensor in in_order(outputs)),
        "container": type(outputs) if isinstance(outputs, tuple | list) else None,
        "unusable": "the reference writes into its arguments or buffers, which no functional op may" if written else "",
    }


ROWS = _rows()
BY_NUMBER = {row.number: row for row in ROWS}
