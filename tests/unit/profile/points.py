"""Workloads below a roof, made by hand."""

from __future__ import annotations

from typing import Any

from worker.profile.roofline import RoofPoint


def point(**changes: Any) -> RoofPoint:
    """One of 100 us on a CPU, at 30 % of its memory's speed, unless it is said otherwise."""
    usual: dict[str, Any] = {
        "workload": "large",
        "kind": "cpu",
        "latency_us": 100.0,
        "speedup": 1.2,
        "bytes_moved": 1e6,
        "flops": 0.0,
        "memory_us": 30.0,
        "compute_us": 0.0,
        "sol_fraction": 0.3,
    }
    return RoofPoint(**usual | changes)
