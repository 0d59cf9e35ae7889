"""Which calls the kernel gets: those of a certified workload on which it was faster. Those of a certified workload on
which it was not get the workload's fastest baseline, and all others the reference in eager mode.

`CHECKS` is the whole rule, in words too. It reads shapes, types and settings only, so that torch.compile decides while
it traces (fullgraph=True) and compiles the branch that was taken; there a baseline is the reference, which it fuses.

    KERNEL=auto        (as it comes) as above
    KERNEL=kernel      the kernel also on other machines and where it was not faster; an error where it cannot be used
    KERNEL=reference   never the kernel, never a compiled baseline

The variable's real name is the package's in capitals, then `_USE`; it is read at import. `use()` says it later.
"""

from __future__ import annotations

import functools
import inspect
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from . import baselines
from .facts import BACKWARD, MODE_MATTERS, PACKAGE
from .kernels import FAILED, NotBuilt, call_kernel
from .ops import forward as op
from .table import ROWS, Init, Like, Row, bound_init, reference, tensors_of

VARIABLE = f"{PACKAGE.upper().replace('.', '_')}_USE"
CHOICES = ("auto", "kernel", "reference")
ARGUMENTS = tuple(inspect.signature(reference.Model.forward).parameters)[1:]
"""Of forward, by name."""


_mode: str = os.environ.get(VARIABLE, "auto")


class NotCovered(RuntimeError):
    """The kernel was demanded for a call that it is not for. The message says why."""


class Call(NamedTuple):
    """What a decision is made from."""

    rows: tuple[int, ...]
    """Numbers of the rows for the arguments that the module was constructed with."""
    state: Sequence[torch.Tensor]
    inputs: tuple[Any, ...]
    training: bool
    changed: bool
    """Whether a plain attribute, such as `eps`, was set since the module was made."""


def _right_type(value: Any, like: Any) -> bool:
    if isinstance(like, Like):
        return type(value) is torch.Tensor or type(value) is torch.nn.Parameter
    return type(value) is type(like) and bool(value == like)


def _tensors(row: Row, call: Call) -> list[tuple[torch.Tensor, Like]]:
    pairs = [(value, like) for value, like in zip(call.inputs, row.inputs, strict=True) if isinstance(like, Like)]
    return [*pairs, *zip(call.state, row.state, strict=True)]


def _arguments(row: Row, call: Call) -> bool:
    if len(call.inputs) != len(row.inputs) or len(call.state) != len(row.state):
        return False
    return all(_right_type(value, like) for value, like in zip(call.inputs, row.inputs, strict=True)) and all(
        _right_type(value, like) for value, like in zip(call.state, row.state, strict=True)
    )


def _device(row: Row, call: Call) -> bool:
    devices = [tensor.device for tensor, _like in _tensors(row, call)]
    return bool(devices) and devices[0].type == row.kernel.device and all(each == devices[0] for each in devices)


def _strides(tensor: torch.Tensor, like: Like) -> bool:
    return tensor.layout is torch.strided and all(tensor.stride(place) == stride for place, stride in like.strides)


def _untransformed(row: Row, call: Call) -> bool:
    # In a trace torch.func is taken apart before the op is called, which has a rule for vmap.
    if torch.compiler.is_compiling():
        return True
    if forward_ad._current_level >= 0:  # neither a kernel nor compiled code hands on a tangent: it would be lost
        return False
    return not any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor, _like in _tensors(row, call))


def _gradient_wanted(row: Row, call: Call) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor, _like in _tensors(row, call))


def _grad(row: Row, call: Call) -> bool:
    if not _gradient_wanted(row, call):
        return True
    # In a trace the backward would run forward twice, and nobody timed that.
    return BACKWARD and (_mode == "kernel" or not torch.compiler.is_compiling())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _architectures() -> tuple[str, ...]:
    return _read_architectures()


@functools.cache
def _read_architectures() -> tuple[str, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple("sm_{}{}".format(*torch.cuda.get_device_capability(i)) for i in range(torch.cuda.device_count()))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


_PROCESSOR = _processor()


def _machine(row: Row, call: Call) -> bool:
    if _mode == "kernel":
        return True
    if row.kernel.device == "cpu":
        return row.kernel.machine == _PROCESSOR
    return bool(row.kernel.machine == _architectures()[_tensors(row, call)[0][0].device.index or 0])


def _faster(row: Row, _call: Call) -> bool:
    return row.faster or _mode == "kernel"


def _built(row: Row, _call: Call) -> bool:
    return row.kernel.name not in FAILED


Check = tuple[Callable[[Row, Call], bool], str]
CHECKS: tuple[Check, ...] = (
    (lambda row, call: not row.unusable, "{row.unusable}"),
    (_arguments, "other arguments: the workload takes plain torch tensors (no subclass) {row.inputs}"),
    (_untransformed, "a transform of torch.func, such as vmap or grad, or forward-mode AD is at work"),
    (_device, "the kernel is for tensors on one device, {row.kernel.device}"),
    (
        lambda row, call: all(tensor.dtype == like.dtype for tensor, like in _tensors(row, call)),
        "other types than {types}",
    ),
    (
        lambda row, call: all(tuple(tensor.shape) == like.shape for tensor, like in _tensors(row, call)),
        "other shapes than {shapes}",
    ),
    (
        lambda row, call: all(_strides(tensor, like) for tensor, like in _tensors(row, call)),
        "another memory layout than strides {strides}",
    ),
    (lambda row, call: row.number in call.rows, "constructed otherwise than with {row.init[0]}"),
    (lambda row, call: not call.changed, "an attribute was set after construction; the kernel was certified without"),
    (
        lambda row, call: call.training or not MODE_MATTERS,
        "certified in training mode, and the reference may differ after eval()",
    ),
    (
        lambda row, call: not torch.is_autocast_enabled(row.kernel.device),
        "torch.autocast would have the reference compute in another type",
    ),
    (
        _grad,
        "a gradient is wanted, and the kernel was judged forward only: call it under torch.no_grad()"
        if not BACKWARD
        else "torch.compile with gradients: the backward would have to run forward once more",
    ),
    (_machine, "certified on {row.kernel.machine}, and this is another machine"),
    (
        _faster,
        "it was not surely faster there: {row.speedup:.2f}x over {row.baseline}, from {row.ci95[0]:.2f}{no_baseline}",
    ),
    (_built, "{failed}"),
)
"""In this order; what fails last came nearest."""
_OF_BASELINES = tuple(test for test, _why in CHECKS if test not in (_faster, _built))


def use(choice: str) -> None:
    """Have calls decided as `auto`, `kernel` or `reference` says, in this process."""
    global _mode
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE} is {choice!r}: say one of {', '.join(CHOICES)}")
    _mode = choice


use(_mode)


def chosen(call: Call) -> Row | None:
    """The row whose kernel the call gets; None for the reference. Raises NotCovered."""
    if _mode == "reference":
        return None
    row = _kernel_row(call)
    if row is None and _mode == "kernel":
        raise NotCovered(explained(call))
    return row


def _kernel_row(call: Call) -> Row | None:
    for row in ROWS:
        # Speed first, though it is named late: a row has either a kernel or a baseline to offer, and is checked once.
        if _faster(row, call) and all(test(row, call) for test, _why in CHECKS):
            return row
    return None


def outpaced(call: Call) -> Row | None:
    """The row whose baseline a call gets that got no kernel: nothing but speed speaks against the kernel."""
    if torch.compiler.is_compiling() or _mode != "auto" or _observed():
        return None
    for row in ROWS:
        if baselines.usable(row) and all(test(row, call) for test in _OF_BASELINES):
            return row
    return None


def _observed() -> bool:
    """Whether somebody records the operations of this call, which are not those of compiled code."""
    return torch._C._get_tracing_state() is not None or bool(torch._C._len_torch_dispatch_stack())


def explained(call: Call) -> str:
    """In words, which of kernel, baseline and reference the call gets, and why."""
    if _mode == "reference":
        return f"reference: {VARIABLE} or use() says so"
    row = _kernel_row(call)
    if row is not None:
        together = ", forward and backward together" if BACKWARD else ""
        return f"kernel: {row.label}, certified {_gain(row)} over {row.baseline}{together}"
    row = outpaced(call)
    if row is not None:
        return f"baseline: {row.baseline} on {row.workload}: the kernel was not surely faster there ({_gain(row)})"
    nearest, why = -1, "there is no certified workload"
    for row in ROWS:
        failed = next(place for place, (test, _why) in enumerate(CHECKS) if not test(row, call))
        if failed > nearest:
            nearest, why = failed, f"{row.label}: {_reason(row, CHECKS[failed][1])}"
    return f"reference: {why}"


def _gain(row: Row) -> str:
    low, high = row.ci95
    return f"{row.speedup:.2f}x [{low:.2f}, {high:.2f}]"


def _reason(row: Row, why: str) -> str:
    every = [*(each for each in row.inputs if isinstance(each, Like)), *row.state]
    return why.format(
        row=row,
        types=[str(like.dtype).removeprefix("torch.") for like in every],
        shapes=[like.shape for like in every],
        strides=[like.full_strides for like in every],
        failed=FAILED.get(row.kernel.name, ""),
        no_baseline=f"; {baselines.FAILED[row.number]}" if row.number in baselines.FAILED else "",
    )


def run(row: Row, call: Call) -> Any:
    """The kernel's outputs, in the reference's container."""
    inputs = [value for value, like in zip(call.inputs, row.inputs, strict=True) if isinstance(like, Like)]
    if BACKWARD and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        outputs = call_kernel(row, call.state, inputs)  # its own autograd.Function, and so its forward only once
    else:
        outputs = op(list(call.state), inputs, row.number)
    return outputs[0] if row.container is None else row.container(outputs)


def _plain(module: torch.nn.Module) -> tuple[tuple[torch.nn.Module, str, Any], ...]:
    kinds = (bool, int, float, str, type(None))
    return tuple(
        (part, name, value)
        for part in module.modules()
        for name, value in vars(part).items()
        if type(value) in kinds and name != "training" and not name.startswith("_")
    )


def _same(one: Init, other: Init) -> bool:
    try:
        return bool(one == other)
    except RuntimeError:  # a tensor among the arguments: equal to nothing
        return False


class DropIn(reference.Model):  # type: ignore[misc, name-defined]
    """The reference's module with its constructor, parameters and state dict; `forward` picks what runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._init = bound_init(args, kwargs)
        self._rows = tuple(row.number for row in ROWS if _same(row.init, self._init))
        self._made_with = _plain(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The reference's forward."""
        if kwargs:
            return super().forward(*args, **kwargs)
        call = self._call(args)
        row = chosen(call)
        if row is not None:
            try:
                return run(row, call)
            except NotBuilt:  # at the first call: later ones are not chosen
                pass
        row = outpaced(call)
        if row is not None:
            return baselines.run(row, self, args, gradient=_gradient_wanted(row, call))
        return super().forward(*args)

    def explain(self, *args: Any) -> str:
        """In words, which of kernel, baseline and reference a call with these arguments gets, and why."""
        return explained(self._call(args))

    def _call(self, inputs: tuple[Any, ...]) -> Call:
        changed = any(getattr(part, name, None) != value for part, name, value in self._made_with)
        return Call(self._rows, tensors_of(self)[1], inputs, self.training, changed)


def functional(*args: Any, init: Sequence[Any] = (), state: Mapping[str, torch.Tensor] | None = None) -> Any:
    """The operation as a function: forward's arguments, and for a problem that has them the constructor's arguments
    (`init`) and the tensors of its state dict (`state`). Call it once before it is compiled: that makes the module."""
    key = tuple(init)
    module = _modules.get(key)
    if module is None:
        with torch.random.fork_rng(devices=[]):
            module = _modules[key] = DropIn(*init)
    return module(*args) if state is None else torch.func.functional_call(module, dict(state), args, strict=True)


_modules: dict[tuple[Any, ...], DropIn] = {}
