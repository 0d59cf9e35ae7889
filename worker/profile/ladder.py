"""A profile: one workload looked at from the highest rung that this machine allows, and one bottleneck in words.

    profiler = Profiler(device, home, floor, runner)      # once per judge
    evaluation.profile = profiler.profile(trial, exhibits)      # after timing, for accepted candidates

GPU: ncu, else CUPTI by torch's profiler, else the resources of each cubin. CPU: perf, else g++'s report on the loops in
which the threads were found. Below all of them the roofline, from the judge's own figures alone. The report says which
rung it was and why no higher one. Nothing here can change a verdict: whatever a rung raises is written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import structlog
import torch

from worker.judge.exhibits import Exhibit
from worker.judge.physics.floor import PhysicsFloor, computed_in
from worker.judge.report import WorkloadTiming
from worker.judge.runners.sessions import Runner
from worker.judge.trial import Trial
from worker.profile import metrics, words
from worker.profile.diagnosis import diagnose
from worker.profile.findings import Evidence
from worker.profile.on_cpu import CpuLadder, widest_vector_bytes
from worker.profile.on_gpu import GpuLadder
from worker.profile.roofline import RoofPoint
from worker.profile.rungs import Seen

log = structlog.get_logger()

VERSION = 1
"""Of the report's form."""


class Profiler:
    """Profiles the accepted candidates of one judge, on one device."""

    def __init__(
        self, device: str, home: Path, floor: PhysicsFloor, fresh: Callable[[], AbstractContextManager[Runner]]
    ) -> None:
        """`home`: of the build cache. `fresh`: makes a confined runner with its build broker."""
        self._kind, self._floor = torch.device(device).type, floor
        self._ladder = GpuLadder(fresh) if self._kind == "cuda" else CpuLadder(home / "cache" / "build")

    def profile(self, trial: Trial) -> dict[str, Any]:
        """The profile of an accepted, timed candidate as JSON: see docs/profile.md. Measures: hold the device alone.

        The workload looked at is the one that gains least: that is where a change pays. Never raises: no verdict may
        be lost for advice on it.
        """
        try:
            return self._profile(trial)
        except Exception as failure:  # noqa: BLE001 - the boundary between advice and verdicts
            log.exception("profile.failed", candidate=trial.request.candidate_id)
            return {"version": VERSION, "failed": f"{type(failure).__name__}: {failure}"[:300]}

    def _profile(self, trial: Trial) -> dict[str, Any]:
        started = time.monotonic()
        rows = trial.evaluation.workloads
        exhibits = {exhibit.name: exhibit for exhibit in trial.exhibits.workloads}
        points = [self._point(exhibits[row.name], row) for row in rows]
        point = min(points, key=lambda each: each.speedup)
        seen = self._ladder.look(trial, point)
        evidence = self._evidence(exhibits[point.workload], point, seen)
        diagnosis = diagnose(evidence)
        return {
            "version": VERSION,
            "rung": str(seen.rung),
            "refused": {str(name): why for name, why in seen.refused.items()},
            "workload": point.workload,
            "bound": str(diagnosis.primary.bound),
            "cause": diagnosis.primary.cause,
            "primary": words.sentence(diagnosis.primary),
            "deferred": [words.sentence(finding) for finding in diagnosis.deferred],
            "metrics": dict(evidence.metrics),
            "roofline": {each.workload: words.roof(each) for each in points},
            "hot": [loop.to_json() for loop in seen.hot],
            "kernels": [dict(kernel) for kernel in seen.kernels],
            "text": words.text(point, diagnosis, seen),
            "wall_s": round(time.monotonic() - started, 3),
        }

    def _point(self, exhibit: Exhibit, row: WorkloadTiming) -> RoofPoint:
        work, ceilings = self._floor.work(exhibit), self._floor.ceilings
        peak = 0.0
        if work.flops:
            peak = ceilings.flops_per_s(computed_in(exhibit), tf32=exhibit.truth.precision.tf32)
        return RoofPoint(
            workload=row.name,
            kind=self._kind,
            latency_us=row.latency_us,
            speedup=row.speedup,
            bytes_moved=float(work.bytes_moved),
            flops=float(work.flops),
            memory_us=work.bytes_moved / ceilings.bytes_per_s * 1e6,
            compute_us=work.flops / peak * 1e6 if peak else 0.0,
            sol_fraction=row.sol_fraction,
        )

    def _evidence(self, exhibit: Exhibit, point: RoofPoint, seen: Seen) -> Evidence:
        figures: dict[str, float | None] = {
            "sol_fraction": point.sol_fraction,
            "memory_share": point.memory_share,
            "compute_share": point.compute_share if point.flops else None,
        }
        on_cpu = self._kind == "cpu"
        return Evidence(
            point,
            metrics.chosen(figures | seen.metrics),
            tuple(seen.hot),
            units=torch.get_num_threads() if on_cpu else torch.cuda.get_device_properties(0).multi_processor_count,
            vector_bytes=widest_vector_bytes() if on_cpu else 0,
            half_precision=computed_in(exhibit).itemsize == 2,
            kernels=tuple(seen.kernels),
        )
