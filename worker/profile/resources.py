"""A GPU's kernels by what they need and how they are launched: from CUPTI's records, ptxas's log or a Triton build."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from worker.profile.loops import Malformed, plain
from worker.profile.ncu import Counted
from worker.profile.occupancy import occupancy

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the compiler gave one kernel."""

    name: str
    registers: int
    """Per thread."""
    spill_bytes: int
    shared_bytes: int
    """Static only, for CUDA C++."""
    threads: int | None = None
    """Of a block; known for Triton."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def of_log(log: str) -> Iterator[Kernel]:
    """Kernels in the log of `ptxas -v`, as nvcc and NVRTC print it."""
    name, spills = "", 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, spills = entry[1], 0
        elif spilled := _SPILLS.search(line):
            spills = max(int(spilled[1]), int(spilled[2]))
        elif (used := _USED.search(line)) and name:
            shared = _SHARED.search(line)
            yield Kernel(name, int(used[1]), spills, int(shared[1]) if shared else 0)
            name = ""


def of_record(report: Mapping[str, Any]) -> list[Kernel]:
    """Kernels in the (untrusted) report of `worker.runner.triton_record`. Raises Malformed."""
    try:
        return [
            Kernel(
                plain(str(kernel["name"]))[:200],
                int(kernel["registers"] or 0),
                int(kernel["stack_bytes"] or 0),
                int(kernel["shared_bytes"]),
                32 * int(kernel["num_warps"]),
            )
            for kernel in report["kernels"]
        ]
    except (KeyError, TypeError, ValueError) as broken:
        raise Malformed(f"the record of the builds is malformed: {broken!r}") from broken


def of_launches(
    answer: Mapping[str, Any], calls: int, latency_us: float, capability: int, multiprocessors: int
) -> Counted:
    """A call's metrics from CUPTI's (untrusted) records of `calls` calls. Raises Malformed."""
    try:
        kernels = [_launch(kernel) for kernel in answer["kernels"]]
    except (KeyError, TypeError, ValueError) as broken:
        raise Malformed(f"the list of kernels is malformed: {broken!r}") from broken
    if not kernels:
        raise Malformed("the profiler recorded no kernel")
    total_us = sum(kernel["total_us"] for kernel in kernels)
    longest = kernels[0]
    metrics: dict[str, float | None] = {
        "device_share": min(1.0, total_us / calls / latency_us),
        "kernels_per_call": sum(kernel["count"] for kernel in kernels) / calls,
        "registers": longest["registers"],
    }
    fits = occupancy(capability, longest["threads"], longest["registers"], longest["shared_bytes"])
    if fits is not None and fits.blocks and longest["blocks"]:
        metrics["occupancy"] = fits.share
        metrics["waves"] = longest["blocks"] / (fits.blocks * multiprocessors)
    listed = [
        {
            "name": kernel["name"],
            "us": round(kernel["total_us"] / calls, 2),
            "share": round(kernel["total_us"] / total_us, 3),
            "grid": kernel["grid"],
            "block": kernel["block"],
        }
        for kernel in kernels[:_LISTED]
    ]
    return Counted(metrics, listed)


def _launch(kernel: Mapping[str, Any]) -> dict[str, Any]:
    grid, block = ([int(size) for size in kernel.get(name) or (0,)] for name in ("grid", "block"))
    total_us = float(kernel["total_us"])
    if total_us <= 0:
        raise ValueError("a kernel that took no time")
    return {
        "name": plain(str(kernel["name"]))[:200],
        "count": int(kernel["count"]),
        "total_us": total_us,
        "grid": grid,
        "block": block,
        "blocks": math.prod(grid),
        "threads": math.prod(block),
        "registers": int(kernel.get("registers") or 0),
        "shared_bytes": int(kernel.get("shared_bytes") or 0),
    }
