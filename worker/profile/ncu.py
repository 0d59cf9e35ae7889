"""Nsight Compute: its command line, and a profile's metrics from the counters that it read.

Whole sections and not single counters are asked for: their names stay while counters come and go with the chip, and an
unknown counter would end the run. Of what they hold, `worker.profile.metrics` chooses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.profile.counters import NotCounted
from worker.profile.loops import plain
from worker.profile.metrics import METRICS

_SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables",
             "ComputeWorkloadAnalysis", "WarpStateStats")  # fmt: skip
_EXTRA = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
_TIME, _DRAM = "gpu__time_duration.sum", ("dram__bytes.sum",)
_DRAM_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_WARP_CYCLES = ("smsp__average_warp_latency_per_inst_issued.ratio", "smsp__average_warps_active_per_issue_active.ratio")
_STALLS = frozenset({"stall_memory", "stall_barrier"})
WANTED = tuple(
    dict.fromkeys([_TIME, *_DRAM, *_DRAM_PARTS, *_WARP_CYCLES, *(name for metric in METRICS for name in metric.ncu)])
)
"""The columns that are read back."""
_MOST_LAUNCHES, _LISTED = 16, 8


@dataclass(frozen=True, slots=True)
class Counted:
    """Metrics of a call, and its kernels, longest first."""

    metrics: dict[str, float | None]
    kernels: list[dict[str, Any]]


def command() -> list[str] | None:
    """ncu with its options, to be put before a command; None where it is not installed.

    It looks at the one call between cudaProfilerStart and cudaProfilerStop, evicts caches before every pass as timing
    does, and leaves the clocks alone: other processes may be using them.
    """
    found = shutil.which("ncu")
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    places = [home / "bin" / "ncu" for home in [*homes, Path("/usr/local/cuda")]]
    tool = found or next((str(place) for place in places if place.is_file()), None)
    if tool is None:
        return None
    sections = [option for name in _SECTIONS for option in ("--section", name)]
    return [
        str(Path(tool).resolve()), *sections, "--metrics", _EXTRA, "--profile-from-start", "off", "--clock-control",
        "none", "--cache-control", "all", "--target-processes", "application-only", "--launch-count",
        str(_MOST_LAUNCHES), "--csv", "--page", "raw", "--print-units", "base",
    ]  # fmt: skip


def read(answer: Mapping[str, Any], latency_us: float, least_bytes: float) -> Counted:
    """A call's metrics, from `worker.runner.kernel_list`'s (untrusted) answer. Raises NotCounted in ncu's words."""
    kernels = [kernel for kernel in map(_kernel, answer.get("kernels") or []) if kernel is not None]
    if not kernels:
        said = " ".join(str(answer.get("said", "")).split())
        raise NotCounted(said[-160:] or f"ncu listed no kernel (exit code {answer.get('code')})")
    kernels.sort(key=lambda kernel: -kernel[1][_TIME])
    total_ns = sum(counters[_TIME] for _name, counters in kernels)
    moved = sum(_dram_bytes(counters) for _name, counters in kernels)
    metrics: dict[str, float | None] = {
        "device_share": min(1.0, total_ns / 1e3 / latency_us),
        "kernels_per_call": float(len(kernels)),
        "traffic_ratio": moved / least_bytes if least_bytes and moved else None,
    }
    longest = kernels[0][1]
    for metric in METRICS:
        value = next((longest[name] for name in metric.ncu if name in longest), None)
        if value is not None:
            metrics[metric.name] = value * metric.scale / (_warp_cycles(longest) if metric.name in _STALLS else 1.0)
    listed = [
        {"name": name, "us": round(counters[_TIME] / 1e3, 2), "share": round(counters[_TIME] / total_ns, 3)}
        for name, counters in kernels[:_LISTED]
    ]
    return Counted(metrics, listed)


def _kernel(entry: Any) -> tuple[str, dict[str, float]] | None:
    """(name, counters) of an entry that has a duration."""
    if not isinstance(entry, dict) or not isinstance(entry.get("counters"), dict):
        return None
    counters = {str(name): float(value) for name, value in entry["counters"].items() if isinstance(value, int | float)}
    return (plain(str(entry.get("name", "")))[:200], counters) if counters.get(_TIME, 0) > 0 else None


def _dram_bytes(counters: Mapping[str, float]) -> float:
    whole = next((counters[name] for name in _DRAM if name in counters), None)
    return whole if whole is not None else sum(counters.get(name, 0.0) for name in _DRAM_PARTS)


def _warp_cycles(counters: Mapping[str, float]) -> float:
    """Cycles of a warp between two of its instructions: what the stalls are shares of."""
    return next((counters[name] for name in _WARP_CYCLES if counters.get(name)), 1.0)
