"""How fast each workload of the suite could be at all: its speed of light on one device, from counts and two peaks.

    python -m benchmarks.record light --hardware nvidia-h200 > docs/suite.md

Bytes are those of inputs, parameters and outputs, once each; with a backward also of cotangents and gradients.
Operations are those of the matrix products and convolutions that torch's own counter finds in forward, three times as
many with a backward. Both are found without a GPU, from a reference whose tensors have sizes but no values. What takes
longer, moving the bytes or the operations, is the speed of light. The peaks were measured: a device-to-device copy and
square products, of which 8-bit floats are taken to have twice the rate of bf16's. A working set that fits the last
cache can be faster than the memory allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from problems.catalog import ProblemError, Workload, bundled
from worker.judge.physics.operations import OperationCounter
from worker.judge.reference.problem import Problem

_GRADIENTS_TIMES = 3
"""A product's operations forward and backward, in those of forward: its gradients are two products more."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device does at most."""

    bytes_per_s: float
    fp32_per_s: float
    sixteen_bit_per_s: float
    cache_bytes: int

    def operations_per_s(self, size: int) -> float:
        """Of products whose factors have so many bytes."""
        return {1: 2 * self.sixteen_bit_per_s, 2: self.sixteen_bit_per_s}.get(size, self.fp32_per_s)


PEAKS = {"nvidia-h200": Peaks(4.18e12, 51e12, 780e12, 50 << 20)}
"""As in docs/results, 21 November."""
_REDUCED = {"bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Work:
    """The least that one call does."""

    bytes_moved: int
    operations: int
    factor_bytes: int
    """Of the narrowest float among the inputs, or what the problem's policy lets products take."""

    def light_us(self, peaks: Peaks) -> tuple[float, str]:
        """Microseconds, and what they are bound by."""
        memory_us = self.bytes_moved / peaks.bytes_per_s * 1e6
        compute_us = self.operations / peaks.operations_per_s(self.factor_bytes) * 1e6
        if compute_us > memory_us:
            return compute_us, "compute"
        return memory_us, "memory" if self.bytes_moved > peaks.cache_bytes else "cache"


def work_of(problem: Problem, workload: Workload) -> Work | None:
    """None where sizes follow from the values of large tensors."""
    trains, precision = problem.spec.trains(workload), problem.spec.precision

    def look(model: torch.nn.Module, inputs: Any) -> Work:
        with OperationCounter() as counter:
            outputs = model(*inputs)
        state = [*model.parameters(), *model.buffers()]
        given, held, returned = (list(_tensors(part)) for part in (inputs, state, outputs))
        moved = _nbytes((*given, *held, *returned))
        if trains:  # cotangents like the outputs, gradients like the floats
            moved += _nbytes(filter(torch.is_floating_point, (*returned, *given, *model.parameters())))
        sizes = [each.element_size() for each in given if each.is_floating_point()]
        narrow = min(sizes, default=4)
        narrow = min(narrow, _REDUCED.get(precision.compute, 4)) if narrow == 4 else narrow
        return Work(moved, counter.total * (_GRADIENTS_TIMES if trains else 1), narrow)

    return problem.without_values(workload, look)


def table(hardware: str) -> Iterator[str]:
    """The page, line by line. Raises KeyError for hardware whose peaks were not measured."""
    peaks = PEAKS[hardware]
    yield "# The bundled suite"
    yield ""
    yield f"Each operator's workloads for a GPU and their speed of light on an `{hardware}`, as"
    yield f"`python -m benchmarks.record light --hardware {hardware}` counts it (its module says how). Measured peaks:"
    yield f"{peaks.bytes_per_s / 1e12:.2f} TB/s, {peaks.sixteen_bit_per_s / 1e12:.0f} TFLOP/s of 16-bit products and"
    yield f"{peaks.fp32_per_s / 1e12:.0f} of fp32's. `cache`: it fits the device's last cache, and may be faster."
    yield "Products that a mask hides are counted: a kernel that leaves them out may be faster too. What was reached:"
    yield "[results](results/README.md)."
    for name, outlined in bundled().items():
        problem = Problem(outlined.source, name)
        try:
            workloads = problem.workloads(hardware)
        except ProblemError:
            continue
        yield ""
        yield f"## {name}"
        yield ""
        yield f"{outlined.spec.summary or name}"
        yield ""
        yield "| workload | moves, MB | products, GFLOP | speed of light, us | bound by |"
        yield "|---|---|---|---|---|"
        for workload in workloads:
            yield _row(workload.name, work_of(problem, workload), peaks)


def _row(name: str, work: Work | None, peaks: Peaks) -> str:
    if work is None:
        return f"| {name} | depends on values | | | |"
    light_us, bound = work.light_us(peaks)
    return f"| {name} | {work.bytes_moved / 1e6:,.1f} | {work.operations / 1e9:,.1f} | {light_us:,.1f} | {bound} |"


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
