"""The roofline: ceilings measured on this very device, and where each workload lies below them.

Bytes are those of inputs, parameters and outputs once each; operations are the matrix products that torch's own counter
finds in the reference, and at least one per output element, held against the peak of each workload's own type. A
fraction exceeds 1 where a cache holds the working set, where inputs are not all needed (places beyond the end of a
sequence), or where a kernel leaves out products of the reference that causal attention masks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mode
from typing import NamedTuple

import torch

from worker.judge.certificate.document import Roofline, RoofPoint
from worker.judge.exhibits import Exhibit
from worker.judge.physics.ceilings import Ceilings
from worker.judge.physics.floor import computed_in
from worker.judge.physics.operations import OperationCounter
from worker.judge.reference.problem import call_reference
from worker.judge.report import Evaluation

_PROBE_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
_REPEATS = 6


def roofline(workloads: list[Exhibit], evaluation: Evaluation, device: str) -> Roofline | None:
    """None when nothing was timed. Takes about a second: hold the device alone."""
    latency_us = {row.name: row.latency_us for row in evaluation.workloads}
    timed = [exhibit for exhibit in workloads if exhibit.name in latency_us]
    if not timed:
        return None
    ceilings, bytes_per_s = Ceilings(device), copy_bytes_per_s(device)
    peaks = {exhibit.name: _peak(exhibit, ceilings) for exhibit in timed}
    points = tuple(
        _point(exhibit, latency_us[exhibit.name], bytes_per_s, peaks[exhibit.name].flops_per_s) for exhibit in timed
    )
    drawn = mode(peaks.values())
    notes = ["Caches can hold a whole workload: more than 1 is real there."] * (device == "cpu")
    notes += ["Each workload is held against the peak of its own type."] * (len(set(peaks.values())) > 1)
    return Roofline(bytes_per_s, drawn.flops_per_s, drawn.precision, points, " ".join(notes))


class _Peak(NamedTuple):
    """What products of a workload's type reach on this device."""

    precision: str
    flops_per_s: float


def _peak(exhibit: Exhibit, ceilings: Ceilings) -> _Peak:
    """Of the type that the problem's policy lets products take, and not of its outputs': a loss in float32 of products
    in bf16 was held against an H100's 51 TFLOP/s, and its kernel at 9 times the speed of light."""
    dtype = computed_in(exhibit)
    found = ceilings.flops_per_s(dtype, tf32=exhibit.truth.precision.tf32)
    return _Peak(str(dtype).removeprefix("torch."), found)


def copy_bytes_per_s(device: str) -> float:
    """Best of six copies, counting bytes read and written. Not `Ceilings.bytes_per_s`, which is that of reading or
    filling where those are faster: certificates stay comparable with those that were issued."""
    nbytes = _PROBE_BYTES[torch.device(device).type]
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * nbytes / _best_s(lambda: target.copy_(source), device)


def bytes_of(exhibit: Exhibit) -> int:
    """Bytes of inputs, parameters, buffers and outputs, once each."""
    state = sum(int(tensor.nbytes) for tensor in exhibit.instance.model.state_dict().values())
    return exhibit.input_bytes + exhibit.output_bytes + state


def flops_of(exhibit: Exhibit) -> int:
    """Operations of the matrix products in one call of the reference; at least one per output element."""
    with OperationCounter() as counter:
        inputs = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in exhibit.instance.like)
        call_reference(exhibit.instance.call, inputs)
    return max(int(counter.total), sum(output.numel() for output in exhibit.cases[0].eager))


def _point(exhibit: Exhibit, latency_us: float, bytes_per_s: float, flops_per_s: float) -> RoofPoint:
    moved, flops = bytes_of(exhibit), flops_of(exhibit)
    memory_us, compute_us = moved / bytes_per_s * 1e6, flops / flops_per_s * 1e6
    floor_us = max(memory_us, compute_us)
    bound = "memory" if memory_us >= compute_us else "compute"
    return RoofPoint(exhibit.name, float(moved), float(flops), latency_us, floor_us, floor_us / latency_us, bound)


def _best_s(call: Callable[[], object], device: str) -> float:
    times = []
    for _repeat in range(_REPEATS):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
