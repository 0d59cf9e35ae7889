"""From metrics to one primary bottleneck in words with numbers, and what may come after it.

One, because an agent that is given several mends none: in CudaForge (arXiv 2511.01884) a judge that names a single
bottleneck took the mean speedup from 1.11x to 1.68x. The others are deferred: they are next when this one is mended.
The primary is the finding that explains the largest share of a call's time (`worker.profile.findings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from worker.profile.cpu_findings import CPU_RULES
from worker.profile.findings import Evidence, Finding
from worker.profile.gpu_findings import GPU_RULES
from worker.profile.roofline import BOUND_SHARE, Bound

_LEAST_SHARE = 0.1
"""What explains less of the time is not mentioned."""
_DEFERRED = 3
_LAST_RESORT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One bottleneck, and what comes after it."""

    primary: Finding
    deferred: tuple[Finding, ...] = ()


Rule = Callable[[Evidence], Iterator[Finding]]


def diagnose(evidence: Evidence) -> Diagnosis:
    """The bottleneck of one workload. There always is one: a kernel that nothing explains waits."""
    rules: tuple[Rule, ...] = (roofs, *(CPU_RULES if evidence.point.kind == "cpu" else GPU_RULES))
    found = [finding for rule in rules for finding in rule(evidence) if finding.share >= _LEAST_SHARE]
    ranked = sorted(found, key=lambda finding: -finding.share) or [_unexplained(evidence)]
    return Diagnosis(ranked[0], tuple(ranked[1 : 1 + _DEFERRED]))


def roofs(evidence: Evidence) -> Iterator[Finding]:
    """The roofline's own two findings."""
    point = evidence.point
    memory = max(min(point.memory_share, 1.0), evidence.get("dram_share"))
    compute = max(min(point.compute_share, 1.0), evidence.get("sm_share"))
    if memory >= BOUND_SHARE:
        words = f"main memory is in use to {memory:.0%}: {point.bytes_moved / 1e6:.3g} MB at least move in each call"
        remedy = "only fewer bytes help: fuse, narrow the types, read everything once"
        yield Finding("memory_roof", Bound.MEMORY, memory, words, remedy)
    if compute >= BOUND_SHARE:
        words = f"arithmetic is in use to {compute:.0%} of what this device can do"
        yield Finding("compute_roof", Bound.COMPUTE, compute, words, "only fewer or cheaper operations help")


def _unexplained(evidence: Evidence) -> Finding:
    point = evidence.point
    share = max(_LAST_RESORT_SHARE, point.headroom)
    words = (
        f"neither memory ({min(point.memory_share, 1.0):.0%} of its roof) nor arithmetic ({point.compute_share:.0%}) "
        "is used up, and nothing else that was measured explains the time"
    )
    if point.bound is Bound.OVERHEAD:
        words = f"a call takes {point.latency_us:.3g} us, little more than calling anything does"
        return Finding("short_call", Bound.OVERHEAD, share, words, "less around the kernel: one call, no temporaries")
    remedy = "more independent work in flight: unroll, several accumulators, prefetch, smaller pieces for more threads"
    return Finding("waiting", Bound.LATENCY, share, words, remedy)
