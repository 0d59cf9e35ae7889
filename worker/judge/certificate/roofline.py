"""The roofline: ceilings measured on this very device, and where each workload lies below them.

Bytes are those of inputs, parameters and outputs once each; operations are the matrix products that torch's own counter
finds in the reference, and at least one per output element. Both are lower bounds, so a fraction of the speed of light
is one too; a working set that stays in a cache can exceed 1 of the memory ceiling.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from worker.judge.certificate.document import Roofline, RoofPoint
from worker.judge.exhibits import Exhibit
from worker.judge.physics.operations import OperationCounter
from worker.judge.reference.problem import call_reference
from worker.judge.report import Evaluation

_PROBE_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
_PROBE_SIZE = {"cpu": 1024, "cuda": 8192}
_REPEATS = 6


def roofline(workloads: list[Exhibit], evaluation: Evaluation, device: str) -> Roofline | None:
    """None when nothing was timed. Takes about a second: hold the device alone."""
    timed = {row.name: row.latency_us for row in evaluation.workloads}
    if not timed:
        return None
    counted = {exhibit.name: operations_of(exhibit) for exhibit in workloads if exhibit.name in timed}
    dtype = min(_widest(workloads[0]), multiplied(counted.values()), key=lambda each: each.itemsize)
    bytes_per_s, flops_per_s = copy_bytes_per_s(device), matmul_flops_per_s(device, dtype)
    points = [
        _point(exhibit, counted[exhibit.name].total(), timed[exhibit.name], bytes_per_s, flops_per_s)
        for exhibit in workloads
        if exhibit.name in timed
    ]
    note = "" if device != "cpu" else "Caches can hold a whole workload: more than 1 is real there."
    return Roofline(bytes_per_s, flops_per_s, str(dtype).removeprefix("torch."), tuple(points), note)


def copy_bytes_per_s(device: str) -> float:
    """Best of six copies, counting bytes read and written."""
    nbytes = _PROBE_BYTES[torch.device(device).type]
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * nbytes / _best_s(lambda: target.copy_(source), device)


def matmul_flops_per_s(device: str, dtype: torch.dtype) -> float:
    """Best of six square products. Random and not zeros: a GPU multiplies zeros some 13 % faster, for want of heat."""
    size = _PROBE_SIZE[torch.device(device).type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _side in range(2))
    out = torch.empty_like(left)
    return float(2.0 * size**3 / _best_s(lambda: torch.mm(left, right, out=out), device))


def bytes_of(exhibit: Exhibit) -> int:
    """Bytes of inputs, parameters, buffers and outputs, once each."""
    state = sum(int(tensor.nbytes) for tensor in exhibit.instance.model.state_dict().values())
    return exhibit.input_bytes + exhibit.output_bytes + state


def operations_of(exhibit: Exhibit) -> Counter[torch.dtype]:
    """Operations of the matrix products in one call of the reference, by what they multiply."""
    with OperationCounter() as counter:
        inputs = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in exhibit.instance.like)
        call_reference(exhibit.instance.call, inputs)
    found: Counter[torch.dtype] = counter.by_type
    return found


def multiplied(counted: Iterable[Counter[torch.dtype]]) -> torch.dtype:
    """The float type of which most is multiplied; float64 where none is. An output may be wider, and a reference may
    widen what it multiplies: a loss in float32 of products in bf16 was held against an H100's 51 TFLOP/s, and its
    kernel at 9 times the speed of light."""
    together: Counter[torch.dtype] = sum(counted, Counter())
    usual = (torch.float16, torch.bfloat16, torch.float32)  # torch.mm takes no 8-bit floats
    return max((each for each in usual if together[each]), key=together.__getitem__, default=torch.float64)


def _point(exhibit: Exhibit, products: int, latency_us: float, bytes_per_s: float, flops_per_s: float) -> RoofPoint:
    moved = bytes_of(exhibit)
    flops = max(products, sum(output.numel() for output in exhibit.cases[0].eager))
    memory_us, compute_us = moved / bytes_per_s * 1e6, flops / flops_per_s * 1e6
    floor_us = max(memory_us, compute_us)
    bound = "memory" if memory_us >= compute_us else "compute"
    return RoofPoint(exhibit.name, float(moved), float(flops), latency_us, floor_us, floor_us / latency_us, bound)


def _widest(exhibit: Exhibit) -> torch.dtype:
    floating = [value.dtype for value in exhibit.cases[0].eager if value.is_floating_point()]
    return max(floating, key=lambda dtype: dtype.itemsize, default=torch.float32)


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
