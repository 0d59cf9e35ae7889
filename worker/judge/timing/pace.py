"""How long a workload is timed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to time one workload."""

    budget_s: float
    """Seconds of rounds at first."""
    patience_s: float
    """Seconds at most, spent while the interval of the candidate against a baseline is wider than `wanted`."""
    max_rounds: int
    wanted: float = 0.01
    """Half the width of the interval at which more rounds are pointless, as a share; wider where the gain is large."""

    def shared_by(self, workloads: int) -> Pace:
        """The pace of one workload of several: what is published is their mean, whose interval is narrower than theirs
        by the root of their number."""
        return replace(self, wanted=self.wanted * math.sqrt(workloads))


USUAL = {"cpu": Pace(0.8, 0.8, 41), "cuda:0": Pace(1.0, 2.5, 80)}
THOROUGH = {"cpu": Pace(2.0, 4.0, 80), "cuda:0": Pace(3.0, 8.0, 240)}
"""For finalists, and to tell kernels apart that differ by 3 %."""
