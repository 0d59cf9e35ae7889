"""The physics floor: who is faster than the device can move the bytes is suspicious, whatever the numbers say.

    T_SOL   = max(B_min / bandwidth, F / peak, launch)     reported as the speed of light of every workload
    T_bytes = (B_min - last cache) / bandwidth             below 0.9 of it: suspicious

B_min and F are `work`'s, bandwidth and peak are measured on this very device (`ceilings`).
What fits the last cache may still be there from before or may leave it afterwards, so it is no ground for suspicion,
and a working set below it has no floor at all. Operations never are: algebra may remove them.
"""

from __future__ import annotations

import math
import statistics
import weakref
from dataclasses import replace

import torch

from worker.judge.exhibits import Exhibit
from worker.judge.numerics.precision import working_type
from worker.judge.physics.ceilings import Ceilings
from worker.judge.physics.work import Work, least_work
from worker.judge.report import Evaluation, WorkloadTiming
from worker.judge.verdict import Check, Verdict

NAME = "physics floor"
MARGIN = 0.9
_LAUNCH_US = 1.0
"""No call is faster than this: what a kernel with nothing to do takes on a device, or a foreign function on a CPU."""


class PhysicsFloor:
    """The floors of one device's workloads."""

    def __init__(self, device: str) -> None:
        self.ceilings = Ceilings(device)
        self._work: weakref.WeakKeyDictionary[torch.nn.Module, Work] = weakref.WeakKeyDictionary()

    def work(self, exhibit: Exhibit) -> Work:
        """The least work of a workload, counted once."""
        model = exhibit.instance.model
        if model not in self._work:
            self._work[model] = least_work(exhibit)
        return self._work[model]

    def check(self, workloads: list[Exhibit], evaluation: Evaluation) -> Check:
        """Put the speed of light on every timed row and compare it with its floor; turns the verdict to `suspicious`
        when one is below. Measures: hold the device alone."""
        exhibits = {exhibit.name: exhibit for exhibit in workloads}
        faster = self._faster(exhibits, evaluation)
        if faster:  # before anyone is called faster than light: was the ceiling measured in a bad moment?
            self.ceilings.again()
            faster = self._faster(exhibits, evaluation)
        evaluation.workloads = [self._with_light(exhibits[row.name], row) for row in evaluation.workloads]
        figures = self._figures(exhibits, evaluation)
        if faster:
            evaluation.verdict, evaluation.reason = Verdict.SUSPICIOUS, faster[0]
            return Check(NAME, False, faster[0], figures)
        return Check(NAME, True, self._detail(exhibits), figures)

    def speed_of_light_us(self, exhibit: Exhibit) -> float:
        """T_SOL in microseconds."""
        work = self.work(exhibit)
        resident = work.bytes_moved <= self.ceilings.cache_bytes
        bandwidth = self.ceilings.cache_bytes_per_s if resident else self.ceilings.bytes_per_s
        seconds = work.bytes_moved / bandwidth
        if work.flops:
            tf32 = exhibit.truth.precision.tf32
            seconds = max(seconds, work.flops / self.ceilings.flops_per_s(computed_in(exhibit), tf32=tf32))
        return max(seconds * 1e6, _LAUNCH_US)

    def floor_us(self, exhibit: Exhibit) -> float:
        """T_bytes in microseconds: 0 for what fits the last cache."""
        beyond = max(0, self.work(exhibit).bytes_moved - self.ceilings.cache_bytes)
        return beyond / self.ceilings.bytes_per_s * 1e6

    def _faster(self, exhibits: dict[str, Exhibit], evaluation: Evaluation) -> list[str]:
        """One sentence per workload whose time is below its floor even at the upper end of its interval."""
        found = []
        for row in evaluation.workloads:
            exhibit = exhibits[row.name]
            self._learn(exhibit, row)
            floor_us = self.floor_us(exhibit)
            latest_us = upper_median_us(row.samples_us.get("candidate", [row.latency_us]))
            if latest_us < MARGIN * floor_us:
                megabytes = self.work(exhibit).bytes_moved / 1e6
                found.append(
                    f"{row.name}: {latest_us:.1f} us is faster than the {floor_us:.1f} us that this device needs for "
                    f"the {megabytes:.0f} MB that must be moved"
                )
        return found

    def _learn(self, exhibit: Exhibit, row: WorkloadTiming) -> None:
        """Baselines are trusted: what they reach, the device can."""
        beyond = self.work(exhibit).bytes_moved - self.ceilings.cache_bytes
        if beyond > 0 and row.baselines_us:
            self.ceilings.reached(beyond / min(row.baselines_us.values()) * 1e6)

    def _with_light(self, exhibit: Exhibit, row: WorkloadTiming) -> WorkloadTiming:
        light_us = self.speed_of_light_us(exhibit)
        return replace(row, sol_us=light_us, sol_fraction=light_us / row.latency_us)

    def _figures(self, exhibits: dict[str, Exhibit], evaluation: Evaluation) -> dict[str, float | str]:
        figures: dict[str, float | str] = {
            "memory_bytes_per_s": self.ceilings.bytes_per_s,
            "cache_bytes": float(self.ceilings.cache_bytes),
        }
        for row in evaluation.workloads:
            work = self.work(exhibits[row.name])
            figures[f"{row.name}/least_bytes"] = float(work.bytes_moved)
            figures[f"{row.name}/reference_flops"] = float(work.flops)
            figures[f"{row.name}/floor_us"] = self.floor_us(exhibits[row.name])
        return figures

    def _detail(self, exhibits: dict[str, Exhibit]) -> str:
        exempt = [name for name, exhibit in exhibits.items() if self.floor_us(exhibit) == 0]
        notes = sorted({self.work(exhibit).note for exhibit in exhibits.values()} - {""})
        parts = [f"no floor for {', '.join(exempt)}: the last cache holds all of it"] if exempt else []
        return "; ".join(parts + notes)


def upper_median_us(samples_us: list[float]) -> float:
    """The upper end of the 95 % interval of the median, by order statistics (no distribution assumed)."""
    ordered = sorted(samples_us)
    rank = math.ceil(len(ordered) / 2 + 0.98 * math.sqrt(len(ordered)))
    return ordered[min(rank, len(ordered)) - 1] if len(ordered) > 1 else statistics.median(ordered)


def computed_in(exhibit: Exhibit) -> torch.dtype:
    """The type whose peak counts: that of the inputs, float32 when there is no float among them, or what the problem's
    policy lets products take instead."""
    floats = [v.dtype for v in exhibit.instance.like if isinstance(v, torch.Tensor) and v.is_floating_point()]
    stored = min(floats, key=lambda dtype: dtype.itemsize, default=torch.float32)
    return working_type(stored, exhibit.truth.precision)
