"""The metrics of a profile: 30, chosen and frozen, each with why it is there.

Few and chosen, because a model that is shown every counter does worse and costs more than one that is shown two dozen
(CudaForge, arXiv 2511.01884, table 5: 1.77x with 24 chosen metrics against 1.41x with all, at a third of the cost).
None is in a report that no rung of the ladder could measure. Shares are between 0 and 1, as far as measurements are.

`ncu` holds Nsight Compute's names for it: the first that a device has is taken, times `scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a profile."""

    name: str
    unit: str
    why: str
    ncu: tuple[str, ...] = ()
    scale: float = 1.0


_PERCENT = 0.01

METRICS = (
    # From the judge's own figures: on every rung.
    Metric("sol_fraction", "share", "how much there is to gain at all: speed of light over latency"),
    Metric("memory_share", "share", "the least bytes at main memory's speed, over latency: near 1, memory bounds"),
    Metric("compute_share", "share", "the reference's matrix products at the measured peak, over latency"),
    Metric("device_share", "share", "of a call spent in the kernel's own code: the rest is Python, torch and launches"),
    # Where a CPU's threads were found.
    Metric("threads_busy", "threads", "at work at once while the kernel ran: fewer than cores means idle cores"),
    Metric("waiting_share", "share", "of a call spent waiting for the slowest thread: uneven or too small pieces"),
    Metric("foreign_share", "share", "of a call spent in torch's operators: copies and temporaries around the kernel"),
    Metric("python_share", "share", "of a call spent in Python: sizes, arguments, the way into the library"),
    Metric("math_share", "share", "of the kernel spent in libm: functions that are called for one number at a time"),
    Metric("faults_per_call", "1", "page faults: memory that is new in each call is zeroed by the system"),
    Metric("hot_share", "share", "of the kernel spent in its hottest loop: where a change pays"),
    Metric("hot_vector_bytes", "bytes", "the width of that loop's arithmetic: 4 or 8 is scalar code"),
    # A CPU's hardware counters.
    Metric("instructions_per_cycle", "1", "below 1 the core waits, above 2.5 only fewer instructions help"),
    Metric("branch_stall_share", "share", "of the cycles lost to mispredicted branches, at 15 each"),
    Metric("tlb_stall_share", "share", "of the cycles lost to page walks, at 30 each: strides over many pages"),
    # Both kinds of device, with counters.
    Metric("traffic_ratio", "1", "bytes through main memory over the least: above 1.5, data is fetched twice"),
    # A GPU's kernels.
    Metric("kernels_per_call", "1", "launches: each costs some us, and results in between go through memory"),
    Metric("dram_share", "share", "of DRAM's bandwidth in use: the memory roof as the device itself counts it",
           ("dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"), _PERCENT),
    Metric("sm_share", "share", "of the multiprocessors' throughput in use: the compute roof, whatever the instruction",
           ("sm__throughput.avg.pct_of_peak_sustained_elapsed",), _PERCENT),
    Metric("memory_pipe_share", "share", "of the busiest memory path's throughput: above dram_share, L1 or L2 bounds",
           ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",), _PERCENT),
    Metric("l2_hit_rate", "share", "what L2 saves DRAM: low for tiles that are read by many blocks means a bad order",
           ("lts__t_sector_hit_rate.pct",), _PERCENT),
    Metric("sector_efficiency", "share", "of the bytes fetched that were asked for: low means loads do not coalesce",
           ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",), _PERCENT),
    Metric("bank_conflicts", "1", "passes for each access to shared memory: 1 is without conflicts",
           ("derived__memory_l1_conflicts_shared_nway",)),
    Metric("occupancy", "share", "warps at work of those that fit: what hides latency",
           ("sm__warps_active.avg.pct_of_peak_sustained_active",), _PERCENT),
    Metric("waves", "1", "blocks over those that run at once: below 1 multiprocessors idle, 1.1 ends with a tail",
           ("launch__waves_per_multiprocessor",)),
    Metric("registers", "1", "per thread: what limits occupancy most often", ("launch__registers_per_thread",)),
    Metric("spill_bytes", "bytes", "per thread in local memory: registers that ran out"),
    Metric("tensor_share", "share", "of the tensor cores' cycles: near 0 in a matrix product means they are not used",
           ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"), _PERCENT),
    Metric("stall_memory", "share", "of a warp's cycles spent waiting for global memory: more loads in flight hide it",
           ("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",)),
    Metric("stall_barrier", "share", "of a warp's cycles spent at barriers: uneven work within a block",
           ("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",)),
)  # fmt: skip
"""In the order in which they are shown."""

NAMES = frozenset(metric.name for metric in METRICS)


def chosen(found: Mapping[str, float | None]) -> dict[str, float]:
    """What was measured, in the frozen order and rounded for reading. Raises KeyError for a metric that is none."""
    unknown = sorted(set(found) - NAMES)
    if unknown:
        raise KeyError(f"not among the metrics of a profile: {', '.join(unknown)}")
    values = [(metric.name, found.get(metric.name)) for metric in METRICS]
    return {name: float(f"{value:.4g}") for name, value in values if value is not None}
