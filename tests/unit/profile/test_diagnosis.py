"""One primary bottleneck: the finding that explains most of the time, in words with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.profile.points import point
from worker.profile.diagnosis import Diagnosis, diagnose
from worker.profile.findings import Evidence
from worker.profile.loops import HotLoop
from worker.profile.roofline import Bound

SCALAR = HotLoop(0.9, 12, "s += expf(x[i]);", 4, "control flow in loop.", {"all": 20, "scalar": 9})
NARROW = HotLoop(0.9, 12, "y[i] = x[i] * a;", 16, "", {"all": 8, "packed16": 2})
DIVIDING = HotLoop(0.9, 12, "y[i] = x[i] / a[i];", 64, "", {"all": 8, "packed64": 2, "divide": 1})


def found(metrics: Mapping[str, float], *hot: HotLoop, units: int = 4, **figures: Any) -> Diagnosis:
    half = figures.pop("half_precision", False)
    kernels = figures.pop("kernels", ())
    return diagnose(
        Evidence(point(**figures), metrics, hot, units, vector_bytes=64, half_precision=half, kernels=kernels)
    )


@pytest.mark.parametrize(
    ("metrics", "hot", "figures", "cause", "bound"),
    [
        ({}, (), {"memory_us": 85.0}, "memory_roof", Bound.MEMORY),
        ({}, (), {"compute_us": 85.0}, "compute_roof", Bound.COMPUTE),
        ({}, (), {}, "waiting", Bound.LATENCY),
        ({}, (), {"latency_us": 12.0, "memory_us": 1.0}, "short_call", Bound.OVERHEAD),
        ({"device_share": 0.3, "foreign_share": 0.5}, (), {}, "torch_around", Bound.OVERHEAD),
        ({"device_share": 0.3, "foreign_share": 0.1, "python_share": 0.6}, (), {}, "python_around", Bound.OVERHEAD),
        ({"device_share": 0.3, "waiting_share": 0.6}, (), {}, "waiting_threads", Bound.LATENCY),
        ({"threads_busy": 1.0}, (), {}, "idle_cores", Bound.LATENCY),
        ({"threads_busy": 3.9}, (SCALAR,), {}, "scalar_loop", Bound.COMPUTE),
        ({}, (NARROW,), {}, "narrow_vectors", Bound.COMPUTE),
        ({}, (DIVIDING,), {}, "divisions", Bound.COMPUTE),
        ({"math_share": 0.8}, (), {}, "scalar_math", Bound.COMPUTE),
        ({"faults_per_call": 200.0}, (), {}, "page_faults", Bound.OVERHEAD),
        ({"traffic_ratio": 3.0}, (), {}, "traffic", Bound.MEMORY),
        ({"branch_stall_share": 0.4}, (), {}, "branches", Bound.LATENCY),
        ({"tlb_stall_share": 0.4}, (), {}, "page_walks", Bound.MEMORY),
        ({"instructions_per_cycle": 3.1}, (), {}, "busy_cores", Bound.COMPUTE),
        ({"instructions_per_cycle": 0.4}, (), {}, "slow_cores", Bound.LATENCY),
    ],
)
def test_a_cpus_bottleneck(
    metrics: dict[str, float], hot: tuple[HotLoop, ...], figures: dict[str, Any], cause: str, bound: Bound
) -> None:
    primary = found(metrics, *hot, **figures).primary
    assert (primary.cause, primary.bound) == (cause, bound)
    assert 0 < primary.share <= 1


@pytest.mark.parametrize(
    ("metrics", "figures", "cause", "bound"),
    [
        ({"device_share": 0.3, "kernels_per_call": 6.0}, {}, "launches", Bound.OVERHEAD),
        ({"kernels_per_call": 3.0}, {"kernels": ({"share": 0.4},)}, "unfused", Bound.MEMORY),
        ({"dram_share": 0.9}, {}, "memory_roof", Bound.MEMORY),
        ({"sm_share": 0.9, "dram_share": 0.2}, {}, "compute_roof", Bound.COMPUTE),
        ({"memory_pipe_share": 0.8, "dram_share": 0.3}, {}, "cache_roof", Bound.MEMORY),
        ({"sector_efficiency": 0.2, "memory_pipe_share": 0.5}, {}, "uncoalesced", Bound.MEMORY),
        ({"traffic_ratio": 3.0, "dram_share": 0.5}, {}, "traffic", Bound.MEMORY),
        ({"bank_conflicts": 8.0, "memory_pipe_share": 0.5}, {}, "bank_conflicts", Bound.MEMORY),
        ({"tensor_share": 0.0}, {"flops": 1e9, "half_precision": True}, "no_tensor_cores", Bound.COMPUTE),
        ({"waves": 0.25}, {}, "small_grid", Bound.LATENCY),
        ({"waves": 1.1}, {}, "tail", Bound.LATENCY),
        ({"occupancy": 0.1, "registers": 255.0}, {}, "occupancy", Bound.LATENCY),
        ({"spill_bytes": 96.0}, {}, "spills", Bound.LATENCY),
        ({"stall_memory": 0.6}, {}, "load_latency", Bound.LATENCY),
        ({"stall_barrier": 0.6}, {}, "barriers", Bound.LATENCY),
        ({}, {}, "waiting", Bound.LATENCY),
        ({"tensor_share": 0.0}, {"flops": 1e9}, "waiting", Bound.LATENCY),
    ],
)
def test_a_gpus_bottleneck(metrics: dict[str, float], figures: dict[str, Any], cause: str, bound: Bound) -> None:
    primary = found(metrics, kind="cuda", **figures).primary
    assert (primary.cause, primary.bound) == (cause, bound)


def test_what_the_roofs_explain_nothing_else_does() -> None:
    """At 85 % of the memory roof a scalar loop can be worth 15 % of the time at most."""
    diagnosis = found({}, SCALAR, memory_us=85.0)
    assert diagnosis.primary.cause == "memory_roof"
    assert [(finding.cause, round(finding.share, 2)) for finding in diagnosis.deferred] == [("scalar_loop", 0.15)]


def test_the_largest_share_comes_first_the_rest_is_deferred_and_little_is_not_said() -> None:
    metrics = {
        "device_share": 0.7,
        "foreign_share": 0.05,
        "python_share": 0.0,
        "waiting_share": 0.25,
        "threads_busy": 2.0,
    }
    diagnosis = found(metrics, SCALAR)
    causes = [finding.cause for finding in (diagnosis.primary, *diagnosis.deferred)]
    assert causes == ["scalar_loop", "idle_cores", "waiting_threads"]


def test_words_hold_the_numbers_and_the_place() -> None:
    words = found({}, SCALAR).primary.words
    for part in ["90%", "line 12", "s += expf(x[i]);", "scalar", "control flow in loop."]:
        assert part in words
