"""The physics floor: a kernel faster than its output can be written is suspicious, whatever its numbers say.

Only the bytes that must leave the L2 cache count, and only those of outputs: how much of the inputs a result depends on
is not known from a signature (an embedding reads few rows of its table).
"""

from __future__ import annotations

import time

import torch

from worker.judge.exhibits import Exhibit
from worker.judge.report import Evaluation
from worker.judge.verdict import Check, Verdict

_MARGIN = 0.9
_PROBE_BYTES = 1 << 30


class PhysicsFloor:
    """Measured ceilings of one device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._bytes_per_s: float | None = None

    def check(self, workloads: list[Exhibit], evaluation: Evaluation) -> Check:
        """Compare every timed workload with its floor; turns the verdict to `suspicious` when one is below."""
        if self._device == "cpu":
            return Check("physics floor", True, "not applied on a CPU, whose caches hold these outputs")
        bandwidth = self._bandwidth()
        cache = int(torch.cuda.get_device_properties(0).L2_cache_size)
        for exhibit, row in zip(workloads, evaluation.workloads, strict=True):
            floor_us = max(0, exhibit.output_bytes - cache) / bandwidth * 1e6
            if row.latency_us < _MARGIN * floor_us:
                evaluation.verdict = Verdict.SUSPICIOUS
                evaluation.reason = (
                    f"{exhibit.name}: {row.latency_us:.1f} us is faster than the {floor_us:.1f} us that writing the "
                    "outputs takes on this device"
                )
                return Check("physics floor", False, evaluation.reason)
        return Check("physics floor", True, "", {"copy_bytes_per_s": bandwidth})

    def _bandwidth(self) -> float:
        """Best of five device-to-device copies, counting bytes read and written, in bytes per second."""
        if self._bytes_per_s is None:
            source = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device=self._device)
            target = torch.empty_like(source)
            times = []
            for _repeat in range(6):
                torch.cuda.synchronize()
                start = time.perf_counter()
                target.copy_(source)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
            self._bytes_per_s = 2 * _PROBE_BYTES / min(times)
        return self._bytes_per_s
