"""The rungs of the ladder, and what was seen from the highest one that a machine lets us stand on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from worker.judge.runners.pointers import Unreadable
from worker.judge.verdict import Fault
from worker.languages import BuildError
from worker.languages.cache import BuildProcessFailed
from worker.profile.counters import NotCounted
from worker.profile.loops import HotLoop, Malformed, plain


class Rung(StrEnum):
    """Where a profile's figures come from, by the best of its sources."""

    NCU = "ncu"
    """A GPU's hardware counters, by Nsight Compute."""
    PROFILER = "torch profiler"
    """Kernels with their launches, by CUPTI: no counters."""
    RESOURCES = "cubin resources"
    """What the compiler gave each kernel: registers, spills, shared memory."""
    PERF = "perf"
    """A CPU's hardware counters."""
    COMPILER = "compiler report"
    """Where the threads were found, and what g++ made of those loops."""
    ROOFLINE = "roofline"
    """The judge's own figures alone, with what samples say where they can be taken."""


SAMPLES = "samples"
"""Not a rung of its own: what every rung of a CPU has, where /proc may be read."""

CLOSED = (Fault, NotCounted, Unreadable, Malformed, BuildError, BuildProcessFailed, OSError, subprocess.SubprocessError)
"""All that a rung may raise. None of it says anything about the candidate, which was accepted before."""


@dataclass(slots=True)
class Seen:
    """Raw findings of one profile."""

    rung: Rung = Rung.ROOFLINE
    refused: dict[str, str] = field(default_factory=dict)
    """Why a higher rung could not be stood on."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    hot: Sequence[HotLoop] = ()
    kernels: Sequence[Mapping[str, Any]] = ()
    missed: Sequence[str] = ()
    """What g++ did not vectorise, where nobody knows which loops are hot."""

    def attempt(self, name: str, step: Callable[[], None]) -> bool:
        """Take a step; a machine that refuses it is noted, and the ladder goes on below."""
        try:
            step()
        except CLOSED as closed:
            said = closed.reason if isinstance(closed, Fault) else str(closed) or type(closed).__name__
            self.refused[name] = plain(" ".join(said.split()))[:200]
            return False
        return True
