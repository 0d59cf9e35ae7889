"""What a diagnosis is made of: findings, each a cause with the share of a call's time that it explains.

Shares make causes comparable, so that *one* of them can be called the bottleneck. What a roof explains is the time that
the unavoidable work takes there; what anything else explains cannot be more than the roofs leave (`headroom`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worker.profile.loops import HotLoop
from worker.profile.roofline import Bound, RoofPoint


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds a kernel back."""

    cause: str
    """A word for machines, such as `scalar_loop`."""
    bound: Bound
    share: float
    """Of a call's time that it explains, between 0 and 1."""
    words: str
    """What was seen, with numbers."""
    remedy: str
    """What that calls for."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one workload's calls."""

    point: RoofPoint
    metrics: Mapping[str, float]
    hot: Sequence[HotLoop] = ()
    units: int = 1
    """Threads of a CPU, multiprocessors of a GPU."""
    vector_bytes: int = 32
    """The widest vector of the CPU."""
    half_precision: bool = False
    """Whether the reference's products are of types for which tensor cores exist."""
    kernels: Sequence[Mapping[str, object]] = field(default=())
    """A GPU's kernels, longest first."""

    def get(self, metric: str, otherwise: float = 0.0) -> float:
        """A metric, or `otherwise` where it was not measured."""
        return self.metrics.get(metric, otherwise)

    def known(self, *metrics: str) -> bool:
        """Whether all of them were measured."""
        return all(metric in self.metrics for metric in metrics)

    def most(self, share: float) -> float:
        """The share, but no more than the roofs leave."""
        return max(0.0, min(share, self.point.headroom))
