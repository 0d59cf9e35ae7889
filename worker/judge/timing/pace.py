"""How long a workload is timed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

CHAIN_S = 16e-3
"""Starting and ending a chain takes some 80 us, give or take 70 us (H200)."""


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
    chain_s: float = CHAIN_S
    """Seconds of work in one chain, on a GPU."""

    def shared_by(self, workloads: int) -> Pace:
        """The pace of one workload of several: what is published is their mean, whose interval is narrower than theirs
        by the root of their number."""
        return replace(self, wanted=self.wanted * math.sqrt(workloads))


USUAL = {"cpu": Pace(0.8, 0.8, 41), "cuda:0": Pace(1.0, 2.5, 80)}
THOROUGH = {"cpu": Pace(2.0, 4.0, 80), "cuda:0": Pace(1.5, 8.0, 240, chain_s=3 * CHAIN_S)}
"""For finalists, and to tell kernels apart that differ by 3 %. Chains three times as long cost a sample half as much
again (60 ms of it are new values and switching), and what starts and ends them is a third of the share: with chains of
16 ms two runners of the same code differed by 0.39 % in the standard deviation, with 48 ms by 0.19 % (H200)."""
