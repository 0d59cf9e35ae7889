"""How many bytes a workload needs, found without allocating them: the reference runs on torch's meta device.

A reference whose sizes follow from values (the lengths of lists, a share of tokens for each expert) is run again with
its small tensors real, on the CPU, and its large ones on the meta device still.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from worker.judge.verdict import ReferenceFailed

_Found = TypeVar("_Found")
_GIB = 1 << 30
_REAL_BYTES = 1 << 20
"""Lengths and offsets are smaller: 131,072 of them. Computing with tensors of this size costs microseconds."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one workload."""

    inputs: int
    parameters: int
    outputs: int
    largest: int
    """The largest tensor that forward makes on its way."""
    wide: int
    """Inputs, parameters, outputs and the largest tensor again in float64: the judge's truth."""
    saved: int
    """All tensors that forward makes, in float64: what the truth of gradients may keep of them until its backward."""

    @property
    def needed(self) -> int:
        """What a judgement needs at the least: the reference in its own type, then in float64 beside its inputs."""
        return self.inputs + self.parameters + self.outputs + max(self.largest, self.wide)

    def refuse_above(self, limit: int, workload: str, device: str) -> None:
        """Raise ReferenceFailed when this is more than `limit` bytes."""
        if self.needed <= limit:
            return
        raise ReferenceFailed(
            f"workload {workload!r} does not fit {device}: judging it needs at least {_size(self.needed)} (inputs "
            f"{_size(self.inputs)}, parameters {_size(self.parameters)}, outputs {_size(self.outputs)}, the largest "
            f"tensor between {_size(self.largest)}, all but the first copy in float64), and there are {_size(limit)}; "
            "make its sizes smaller"
        )


def estimate(call: Callable[[str], Any], model: Callable[..., torch.nn.Module]) -> Footprint | None:
    """The footprint of a problem's workload, or None when it cannot be told without its values (forward reads those of
    a large tensor, calls NumPy or names a device): then only allocating tells.

    `call` calls get_init_inputs and get_inputs by name with the workload's parameters; `model` is the Model class.
    """
    return without_values(call, model, _counted)


def without_values(
    call: Callable[[str], Any],
    model: Callable[..., torch.nn.Module],
    look: Callable[[torch.nn.Module, Any], _Found],
) -> _Found | None:
    """What `look` finds of a model and its inputs that have sizes but no values; None where `estimate` gives None."""
    small_ones_real = _SmallOnesReal()  # type: ignore[no-untyped-call]  # torch gives it no types
    for drawn in (torch.device("meta"), small_ones_real):
        # Any failure here is a failure of the estimate, never of the reference: that one is run for real afterwards.
        with contextlib.suppress(Exception, SystemExit), torch.random.fork_rng([]), drawn, torch.no_grad():
            made = model(*call("get_init_inputs"))
            inputs = call("get_inputs")
            given = list(_tensors([*inputs, *made.parameters(), *made.buffers()]))
            if drawn is not small_ones_real and not all(value.is_meta for value in given):
                return None
            return look(made, inputs)
    return None


def _counted(model: torch.nn.Module, inputs: Any) -> Footprint:
    made = _Made()
    with made:
        outputs = model(*inputs)
    held = [list(_tensors(part)) for part in (inputs, [*model.parameters(), *model.buffers()], outputs)]
    given, parameters, returned = (sum(tensor.nbytes for tensor in part) for part in held)
    wide = sum(_wide(tensor) for part in held for tensor in part) + made.wide
    return Footprint(given, parameters, returned, made.bytes, wide, made.all_wide)


def memory_bytes(device: str) -> int:
    """All the memory of the device; for `cpu` the machine's, or the control group's where that is less."""
    if device != "cpu":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(machine, int(text)) if text.isdigit() else machine


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """The largest tensor that any operation makes, and all of them together, views aside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.wide = self.all_wide = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_storage(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        for tensor in _tensors(result):
            if tensor.untyped_storage().nbytes() >= tensor.nbytes:  # an expanded view has less than it shows
                self.bytes = max(self.bytes, tensor.nbytes)
                self.wide = max(self.wide, _wide(tensor))
                self.all_wide += 0 if _storage(tensor) in given else _wide(tensor)
        return result


class _SmallOnesReal(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Tensors above `_REAL_BYTES`, and all that is computed from them, have no values; the others are the CPU's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        with_values = not any(tensor.is_meta for tensor in taken)
        try:
            shadow = _without_values(func, args, kwargs)
        except (RuntimeError, NotImplementedError):
            if not with_values:
                raise
            return func(*args, **kwargs)  # its size follows from values, and they are there
        if with_values and sum(tensor.nbytes for tensor in _tensors(shadow)) <= _REAL_BYTES:
            return func(*args, **kwargs)
        if func._schema.is_mutable and not taken[0].is_meta:
            raise ValueError(f"{func} writes what has no values into a tensor that has them")
        return shadow


def _without_values(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives for tensors of these sizes, on the meta device."""
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    if func is torch.ops.aten.bincount.default:  # a histogram: of all bins, where it says how many there are
        return torch.empty(args[2], dtype=torch.int64, device="meta") if len(args) > 2 else func(*args)
    if "device" in kwargs:
        kwargs = kwargs | {"device": torch.device("meta")}
    return func(*args, **kwargs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _storage(tensor: torch.Tensor) -> int:
    """Where its memory is described: the same for its views."""
    return int(tensor.untyped_storage()._cdata)


def _wide(tensor: torch.Tensor) -> int:
    return tensor.numel() * 8 if tensor.is_floating_point() else 0


def _size(count: int) -> str:
    return f"{count / _GIB:,.1f} GiB" if count >= _GIB else f"{count / (1 << 20):,.1f} MiB"
