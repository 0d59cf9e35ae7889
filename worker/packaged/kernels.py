"""Loading a candidate and calling it with somebody else's parameters; the reference likewise.

A candidate says `from kernelwright import load_cpp`: that name is answered with the loader in this package, for this
candidate alone. C++ and CUDA are compiled at the first use and kept in ~/.cache/kernelwright (or $XDG_CACHE_HOME),
under a key of source, flags, compiler and processor or GPU architecture.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
import threading
import types
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .facts import PACKAGE, Kernel
from .table import Like, Row, construct, in_order, like, reference

_ALIGNED = 64
"""Bytes. The judge's inputs began at such addresses: vector loads may rely on it."""


class NotBuilt(RuntimeError):
    """The kernel could not be built or loaded on this machine. The message says why."""


class WrongOutput(RuntimeError):
    """The kernel returned something else than the reference's shapes and types."""


FAILED: dict[str, str] = {}
"""Kernels that cannot be used on this machine, by name, and why."""
_loaded: dict[str, types.ModuleType] = {}
_loading = threading.RLock()
_mine = threading.local()
"""Instances of this thread: parameters are put into them for the time of a call."""


def candidate(kernel: Kernel) -> types.ModuleType:
    """The candidate's module, built and loaded at the first call. Raises NotBuilt, at every call."""
    with _loading:
        if kernel.name in FAILED:
            raise NotBuilt(FAILED[kernel.name])
        if kernel.name not in _loaded:
            try:
                _loaded[kernel.name] = _load(kernel)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - no compiler, no Triton, a full disk: all the same
                first = (str(error).strip().splitlines() or [""])[0]
                FAILED[kernel.name] = f"{kernel.name} cannot be built here: {type(error).__name__}: {first}"
                warnings.warn(f"{PACKAGE}: {FAILED[kernel.name]}. The reference is used instead.", stacklevel=2)
                raise NotBuilt(FAILED[kernel.name]) from error
        return _loaded[kernel.name]


def _load(kernel: Kernel) -> types.ModuleType:
    name = f"{PACKAGE}.{kernel.name}"
    spec = importlib.util.spec_from_file_location(name, kernel.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    sys.modules[name] = module
    try:
        with _disable_current_modes():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(name: str, *args: Any, **kwargs: Any) -> types.ModuleType:
    if name == "kernelwright":
        return importlib.import_module(f"{PACKAGE}._loader")
    return builtins.__import__(name, *args, **kwargs)


def call_kernel(row: Row, state: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The kernel's outputs: with the reference's shapes, types and strides, none of them part of an input or of one
    another. Raises NotBuilt and WrongOutput."""
    model = _instance(row, row.kernel.name, candidate(row.kernel).ModelNew, inputs)
    state, inputs = [_aligned(tensor) for tensor in state], [_aligned(tensor) for tensor in inputs]
    device = (*inputs, *state)[0].device
    with torch.cuda.device(device if device.type == "cuda" else -1):  # a launch goes to the current device
        outputs = model(state, inputs)
    if len(outputs) != len(row.outputs):
        raise WrongOutput(f"{row.label}: {len(outputs)} outputs, not {len(row.outputs)}")
    taken = {tensor.untyped_storage().data_ptr() for tensor in (*state, *inputs) if tensor.numel()}
    return [_own(row, place, output, taken) for place, output in enumerate(outputs)]


def call_reference(row: Row, state: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The reference's outputs for the same tensors."""
    return call_model(row, "reference", reference.Model, state, inputs)


def call_model(
    row: Row, what: str, kind: Any, state: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs of a class of the problem's file, of which `what` is a name, for these tensors."""
    return _instance(row, what, kind, inputs)(state, inputs)


class _Instance:
    """A model whose parameters and buffers are put in for one call, by name."""

    def __init__(self, row: Row, kind: Any, device: torch.device) -> None:
        with _disable_current_modes(), torch.random.fork_rng(devices=[]):
            self._model = construct(kind, row.init).to(device)
        self._row = row
        self._places = [_place(self._model, name) for name in row.names]

    def __call__(self, state: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[Any]:
        given = iter(inputs)
        arguments = [next(given) if isinstance(each, Like) else each for each in self._row.inputs]
        try:
            for place, tensor in zip(self._places, state, strict=True):
                if place is not None:  # a buffer that only the reference has, and that no state dict holds
                    place[0][place[1]] = tensor
            return in_order(self._model(*arguments))
        finally:
            for place in self._places:
                if place is not None:
                    place[0][place[1]] = None


def _place(model: torch.nn.Module, name: str) -> tuple[dict[str, Any], str] | None:
    path, _, leaf = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return None
    held: list[dict[str, Any]] = [vars(owner)["_parameters"], vars(owner)["_buffers"]]
    return next(((tensors, leaf) for tensors in held if leaf in tensors), None)


def _instance(row: Row, what: str, kind: Any, inputs: Sequence[torch.Tensor]) -> _Instance:
    known: dict[Any, _Instance] = _mine.__dict__.setdefault("instances", {})
    key = (row.number, what, inputs[0].device if inputs else None)
    if key not in known:
        known[key] = _Instance(row, kind, inputs[0].device if inputs else torch.device(row.kernel.device))
    return known[key]


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.resolve_conj().resolve_neg()
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.data_ptr() % _ALIGNED:
        return tensor.clone(memory_format=torch.preserve_format)
    return tensor


def _own(row: Row, place: int, output: Any, taken: set[int]) -> torch.Tensor:
    wanted = row.outputs[place]
    if not isinstance(output, torch.Tensor) or output.dtype != wanted.dtype or tuple(output.shape) != wanted.shape:
        got = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise WrongOutput(f"{row.label}: output {place} is {got}, not {wanted.dtype} {wanted.shape}")
    home = output.untyped_storage().data_ptr()
    fresh = home not in taken
    taken.add(home)
    if like(output).strides == wanted.strides:
        return output if fresh else output.clone(memory_format=torch.preserve_format)
    laid_out = torch.empty_strided(wanted.shape, wanted.full_strides, dtype=output.dtype, device=output.device)
    return laid_out.copy_(output)
