"""The fastest baseline of a certified workload, for calls on which the kernel was not surely faster than it.

It is made as the judge made it: from the reference or the library's class in the problem's file, in the same mode of
torch.compile, with TF32 where the problem allows that. It is built at the first such call (seconds; minutes where
torch.compile tunes), once for each workload and device, and computes with the parameters of the module that is called.
Where it cannot be made, a warning says why, once, and the reference runs in eager mode.

What a CUDA graph returns lies in the graph's memory, and its next call overwrites it. So results are copied, and where
that is not enough the same mode is used without graphs: with gradients (those that a parameter keeps would lie there
too), in other threads than the main one, and on other streams than the default one, which a graph's memory knows
nothing of. A graph that the caller captures is on another stream as well.
"""

from __future__ import annotations

import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .facts import KERNELS, LIBRARY, PACKAGE, TF32
from .kernels import call_model
from .table import ROWS, Like, Row, in_order, reference, tensors_of

TRUSTED = "eager"
"""The reference itself."""
_COMPILED = {
    "compile": "default",
    "compile_reduce_overhead": "reduce-overhead",
    "compile_max_autotune": "max-autotune-no-cudagraphs",
    "compile_max_autotune_graphs": "max-autotune",
}
_WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes with CUDA graphs, and what compiles the same code without."""
_LIBRARY = "library_"

Forward = Callable[..., Any]
"""Takes a module and forward's arguments."""


class NotMade(RuntimeError):
    """The certificate names a baseline that this package cannot make. The message says which."""


def _inaccurate() -> dict[int, str]:
    """The judge races a baseline whose results are off, too, but here nobody would check them."""
    off = {kernel.name: kernel.certificate()["environment"].get("baselines_missing") or {} for kernel in KERNELS}
    return {
        row.number: f"the judge found {row.baseline} inaccurate: {off[row.kernel.name][row.baseline]}"
        for row in ROWS
        if row.baseline in off[row.kernel.name]
    }


FAILED: dict[int, str] = _inaccurate()
"""Rows whose baseline is not used in this process, by number, and why."""
_made: dict[tuple[int, torch.device, bool], Forward] = {}
_making = threading.RLock()


def usable(row: Row) -> bool:
    """Whether calls like the row get its baseline: another than eager mode, which the kernel did not surely beat."""
    return not row.faster and row.baseline != TRUSTED and row.number not in FAILED


def run(row: Row, module: torch.nn.Module, inputs: Sequence[Any], *, gradient: bool) -> Any:
    """What forward returns, by the row's baseline; by the reference where that cannot be made. `gradient`: whether one
    is wanted."""
    try:
        device = next(t.device for t in (*inputs, *tensors_of(module)[1]) if isinstance(t, torch.Tensor))
        return _called(row, module, inputs, device, graphs=_has_graphs(row) and _may_replay(device, gradient=gradient))
    except Exception as error:  # noqa: BLE001 - no compiler, no memory to tune in, what dynamo cannot trace: all the same
        outputs = reference.Model.forward(module, *inputs)  # what is wrong with the call itself is raised here
        _give_up(row, error)
        return outputs


def _called(row: Row, module: torch.nn.Module, inputs: Sequence[Any], device: torch.device, *, graphs: bool) -> Any:
    key = (row.number, device, graphs)
    forward = _made.get(key)
    if forward is not None:
        return forward(module, *inputs)
    with _making:  # of two threads one compiles
        forward = _made.get(key) or _make(row, graphs=graphs)
        outputs = forward(module, *inputs)
        _made[key] = forward
    return outputs


def _make(row: Row, *, graphs: bool) -> Forward:
    forward = _forward(row, graphs=graphs)
    return _with_tf32(forward) if TF32 and row.kernel.device != "cpu" else forward


def _forward(row: Row, *, graphs: bool) -> Forward:
    if row.baseline == "eager_tf32":
        found: Forward = reference.Model.forward
        return found
    if row.baseline.startswith(_LIBRARY):
        return _of_library(row, row.baseline.removeprefix(_LIBRARY))
    if row.baseline not in _COMPILED:
        raise NotMade(f"this package knows no baseline {row.baseline!r}")
    mode = _COMPILED[row.baseline]
    mode = mode if graphs else _WITHOUT_GRAPHS.get(mode, mode)
    compiled = torch.compile(_apart(reference.Model.forward, row), mode=None if mode == "default" else mode)
    return _copied(row, compiled) if graphs else compiled


def _apart(forward: types.FunctionType, row: Row) -> types.FunctionType:
    """`forward` with code of its own: torch.compile remembers sizes by the file, line and name of what it compiles, and
    would take those of a second workload for ones that vary. It is the problem file's, as the module's own would come
    back here."""
    code = forward.__code__.replace(co_name=f"{forward.__code__.co_name}_row{row.number}")
    place = forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    mine = types.FunctionType(code, *place)
    mine.__kwdefaults__ = forward.__kwdefaults__
    return mine


def _of_library(row: Row, name: str) -> Forward:
    if name not in LIBRARY:
        raise NotMade(f"the problem names no library {name!r}")
    kind = getattr(reference, LIBRARY[name])

    def forward(module: torch.nn.Module, *inputs: Any) -> Any:
        given = [value for value, like in zip(inputs, row.inputs, strict=True) if isinstance(like, Like)]
        return _contained(row, call_model(row, row.baseline, kind, tensors_of(module)[1], given))

    return forward


def _copied(row: Row, forward: Forward) -> Forward:
    def copied(module: torch.nn.Module, *inputs: Any) -> Any:
        return _contained(row, [output.clone() for output in in_order(forward(module, *inputs))])

    return copied


def _contained(row: Row, outputs: list[torch.Tensor]) -> Any:
    return outputs[0] if row.container is None else row.container(outputs)


def _has_graphs(row: Row) -> bool:
    return _COMPILED.get(row.baseline) in _WITHOUT_GRAPHS


def _may_replay(device: torch.device, *, gradient: bool) -> bool:
    """Whether copies of a CUDA graph's results are as good as anybody's."""
    if gradient or threading.current_thread() is not threading.main_thread():
        return False
    return bool(torch.cuda.current_stream(device) == torch.cuda.default_stream(device))


def _give_up(row: Row, error: Exception) -> None:
    with _making:
        if row.number in FAILED:  # another thread was first
            return
        first = (str(error).strip().splitlines() or [""])[0]
        FAILED[row.number] = f"{row.baseline} cannot be used here: {type(error).__name__}: {first}"
    warnings.warn(f"{PACKAGE}: on {row.workload} {FAILED[row.number]}. The reference is used instead.", stacklevel=2)


class _Tf32:
    """TF32 in matrix products and convolutions while anybody is in here. It is a setting of the process: calls in
    several threads are counted, so that the last one to leave restores what the first one found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = (False, False)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
                torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._before


_tf32 = _Tf32()


def _with_tf32(forward: Forward) -> Forward:
    def allowed(module: torch.nn.Module, *inputs: Any) -> Any:
        with _tf32:
            return forward(module, *inputs)

    return allowed
