"""What the judge is asked, and what it answers: plain data that travels as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from worker.judge.verdict import Check, Verdict


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Judge one candidate for one problem on one target."""

    candidate_id: str
    candidate_source: str
    problem_name: str
    problem_source: str
    hardware: str
    """`cpu` or a GPU's id, such as `nvidia-h100`."""
    language: str
    """`cpp`, `triton` or `cuda`."""
    seed: int = 0
    """Secret seed of inputs, parameters and schedule; the candidate never sees it."""
    own_kernel_share: float = 0.9
    """Policy: the least share of the device's time that the candidate's own kernels must take. 0: report only."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WorkloadTiming:
    """One workload's timings. Speedups are baseline over candidate."""

    name: str
    latency_us: float
    baselines_us: dict[str, float]
    baseline: str
    speedup: float
    """Against the fastest baseline of this workload."""
    ci95: tuple[float, float]
    samples_us: dict[str, list[float]]
    """One per round. On a GPU baselines that were plainly slower have those of the first rounds only."""
    device_state: dict[str, Any] = field(default_factory=dict)
    """Clocks, power and temperature of a GPU while it was timed, and how often its clocks were held down."""
    residue_us: float = 0.0
    """By how much a latency may be off in all rounds alike; the interval has been widened for it."""
    sol_us: float | None = None
    """Speed of light: the least time that this device's measured ceilings allow for the least work of a call."""
    sol_fraction: float | None = None
    """Of the speed of light: sol_us over latency_us."""


@dataclass(frozen=True, slots=True)
class Phase:
    """When something was done, for a timeline."""

    name: str
    began_at: float
    """Seconds since the epoch."""
    wall_s: float


@dataclass(slots=True)
class Evaluation:
    """Everything found about one candidate; `to_json` is the report."""

    candidate: str
    verdict: Verdict = Verdict.INFRA_ERROR
    reason: str = ""
    checks: list[Check] = field(default_factory=list)
    timed: bool = False
    latency_us: float | None = None
    """Geometric mean over workloads."""
    baselines_us: dict[str, float] = field(default_factory=dict)
    baseline: str | None = None
    speedup: float | None = None
    """Geometric mean over workloads of the speedup against each workload's fastest baseline."""
    speedups: dict[str, float] = field(default_factory=dict)
    ci95: tuple[float, float] | None = None
    workloads: list[WorkloadTiming] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    stages_s: dict[str, float] = field(default_factory=dict)
    """Where the time went: load (with builds), verify, provenance, baselines (made for a problem's first candidate),
    time, profile, code; not waiting for the lease, but timings of other judges that went first count."""
    phases: list[Phase] = field(default_factory=list)
    """The stages, and the life of the runner's process; workers do not store it."""
    build_s: float = 0.0
    wall_s: float = 0.0
    gpu_s: float = 0.0
    """Seconds for which the device was held, in either mode. On a CPU: seconds of verification and timing."""
    log: str = ""
    code: dict[str, str] = field(default_factory=dict)
    """Generated code by kind (`worker.judge.generated`): for whoever stores it, not for the report that is kept."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note how long this takes, all times together, also when it ends in a fault."""
        try:
            with self.phase(name):
                yield
        finally:
            self.stages_s[name] = self.stages_s.get(name, 0.0) + self.phases[-1].wall_s

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note when this was and how long it took, also when it ends in a fault."""
        began_at, started = time.time(), time.monotonic()
        try:
            yield
        finally:
            self.phases.append(Phase(name, began_at, time.monotonic() - started))
