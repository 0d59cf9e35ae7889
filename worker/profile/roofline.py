"""The roofline of a timed workload, from the judge's own figures: where its time would go at the device's ceilings.

Williams, Waterman and Patterson, CACM 52(4), 2009. The thresholds are those of Nsight Compute's speed-of-light rule: a
unit that is used to 60 % or more bounds the kernel; where none is, the kernel waits (NVIDIA, Nsight Compute, "Kernel
Profiling Guide"). Memory is main memory even for what would fit a cache, because the judge evicts caches before a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BOUND_SHARE = 0.6
OVERHEAD_US = {"cpu": 15.0, "cuda": 8.0}
"""What a call takes whose kernel has nothing to do: Python, ctypes and the launch (both seen on two machines)."""


class Bound(StrEnum):
    """What holds a kernel back."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"
    """It waits: for data, for other threads, or because there is too little of it to fill the device."""
    OVERHEAD = "overhead"
    """Its own code is not what takes the time."""


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """One workload below the roof."""

    workload: str
    kind: str
    """`cpu` or `cuda`."""
    latency_us: float
    speedup: float
    bytes_moved: float
    """The least that a call must move."""
    flops: float
    """Of the reference's matrix products; 0 without."""
    memory_us: float
    """What the bytes take at main memory's measured speed."""
    compute_us: float
    sol_fraction: float | None = None

    @property
    def memory_share(self) -> float:
        """Of the latency. Above 1 where a cache kept what the judge could not evict."""
        return self.memory_us / self.latency_us

    @property
    def compute_share(self) -> float:
        """Of the latency."""
        return self.compute_us / self.latency_us

    @property
    def headroom(self) -> float:
        """The share of the latency that neither roof explains."""
        return max(0.0, 1.0 - max(self.memory_share, self.compute_share))

    @property
    def bound(self) -> Bound:
        """The class of the workload, as far as the clock alone can tell."""
        if max(self.memory_share, self.compute_share) >= BOUND_SHARE:
            return Bound.MEMORY if self.memory_share >= self.compute_share else Bound.COMPUTE
        return Bound.OVERHEAD if self.latency_us < 2 * OVERHEAD_US[self.kind] else Bound.LATENCY
