"""What can hold a C++ kernel back, rule by rule: each reads the evidence and yields a finding, or none."""

from __future__ import annotations

from collections.abc import Iterator

from worker.profile.findings import Evidence, Finding
from worker.profile.loops import HotLoop
from worker.profile.roofline import Bound

_SCALAR_BYTES = 8
"""Arithmetic that is no wider than a double is scalar."""
_FLOAT_BYTES = 4
_NARROW_GAIN = 0.5
"""Twice the vector width halves the instructions, not the time: ports, clocks and loads stay (Fog's manuals)."""
_DIVIDES_PER_INSTRUCTION = 0.04
_IDLE_THREADS = 0.75
_FAULT_US = 0.25
"""One page fault on memory that is new: zeroing 4 KiB, and the way into the system and back."""
_FAST_CORE, _SLOW_CORE = 2.5, 0.8
"""Instructions per cycle: above the first a core is busy, below the second it waits."""


def around(evidence: Evidence) -> Iterator[Finding]:
    """Time outside of the kernel's own code."""
    waiting, foreign, python = (evidence.get(f"{what}_share") for what in ("waiting", "foreign", "python"))
    if foreign > 0:
        words = f"{foreign:.0%} of a call of {evidence.point.latency_us:.3g} us is spent in torch's operators"
        remedy = "no torch operations beside the kernel: no copies, no temporaries, one output that the kernel writes"
        yield Finding("torch_around", Bound.OVERHEAD, foreign, words, remedy)
    if python > 0:
        words = f"{python:.0%} of a call of {evidence.point.latency_us:.3g} us is Python around the kernel"
        remedy = "one call into the library for each forward; sizes and flags computed in C++ or once"
        yield Finding("python_around", Bound.OVERHEAD, python, words, remedy)
    if waiting > 0:
        words = f"for {waiting:.0%} of a call no thread computes: they wait for one another or are being started"
        remedy = "fewer parallel regions, pieces of equal cost, fewer threads for small sizes"
        yield Finding("waiting_threads", Bound.LATENCY, waiting, words, remedy)


def idle_cores(evidence: Evidence) -> Iterator[Finding]:
    """Fewer threads at work than there are cores."""
    busy = evidence.get("threads_busy", evidence.units)
    if busy < _IDLE_THREADS * evidence.units:
        share = evidence.most(evidence.get("device_share", 1.0) * (1 - busy / evidence.units))
        words = f"{busy:.2g} of {evidence.units} cores are at work while the kernel runs"
        yield Finding("idle_cores", Bound.LATENCY, share, words, "parallelise the outer loop, in pieces of equal cost")


def hot_loops(evidence: Evidence) -> Iterator[Finding]:
    """Loops with scalar or narrow arithmetic, or with divisions."""
    inside = evidence.get("device_share", 1.0)
    for loop in evidence.hot[:2]:
        yield from _of_loop(evidence, loop, loop.share * inside)


def _of_loop(evidence: Evidence, loop: HotLoop, share: float) -> Iterator[Finding]:
    where = f"{loop.share:.0%} of the kernel's time is in the loop at line {loop.line} (`{loop.text}`)"
    where += f", most of it in {loop.hottest}" if loop.hottest else ""
    widest = evidence.vector_bytes
    divides = loop.mix.get("divide", 0)
    if loop.vector_bytes is not None and loop.vector_bytes <= _SCALAR_BYTES:
        gain = 1 - _FLOAT_BYTES / widest
        why = f"; g++ says: {loop.why}" if loop.why else ""
        words = f"{where}, whose arithmetic is scalar{why}"
        remedy = "vectorise it: contiguous accesses, no branches or calls in it, `#pragma omp simd`, -fno-math-errno"
        yield Finding("scalar_loop", Bound.COMPUTE, evidence.most(share * gain), words, remedy)
    elif loop.vector_bytes is not None and loop.vector_bytes < widest:
        gain = _NARROW_GAIN * (1 - loop.vector_bytes / widest)
        words = f"{where}, in vectors of {loop.vector_bytes} bytes where this CPU has {widest}"
        remedy = f"-mprefer-vector-width={8 * widest}, or longer inner loops"
        yield Finding("narrow_vectors", Bound.COMPUTE, evidence.most(share * gain), words, remedy)
    if divides > _DIVIDES_PER_INSTRUCTION * loop.mix.get("all", 1):
        words = f"{where}: {divides} of its {loop.mix.get('all', 0)} instructions divide or take roots"
        remedy = "multiply by a reciprocal that is computed once"
        yield Finding("divisions", Bound.COMPUTE, evidence.most(0.5 * share), words, remedy)


def scalar_math(evidence: Evidence) -> Iterator[Finding]:
    """expf and the like, one number at a time."""
    math = evidence.get("math_share")
    gain = 1 - _FLOAT_BYTES / evidence.vector_bytes
    words = f"{math:.0%} of the kernel's time is in the math library (exp, tanh and the like for single numbers)"
    remedy = "a polynomial of its own that vectorises, or -ffast-math with libmvec"
    share = evidence.most(math * gain * evidence.get("device_share", 1.0))
    yield Finding("scalar_math", Bound.COMPUTE, share, words, remedy)


def page_faults(evidence: Evidence) -> Iterator[Finding]:
    """Memory that is new in each call."""
    faults = evidence.get("faults_per_call")
    share = min(1.0, faults * _FAULT_US / evidence.point.latency_us)
    words = f"{faults:.0f} page faults a call: memory that is new each time"
    yield Finding("page_faults", Bound.OVERHEAD, share, words, "keep scratch memory in static buffers, allocate less")


def counted(evidence: Evidence) -> Iterator[Finding]:
    """What only hardware counters tell."""
    ratio, branches = evidence.get("traffic_ratio", 1.0), evidence.get("branch_stall_share")
    walks, ipc = evidence.get("tlb_stall_share"), evidence.get("instructions_per_cycle")
    if ratio > 1:
        share = min(1.0, evidence.point.memory_share * ratio) * (1 - 1 / ratio)
        words = f"{ratio:.2g} times the least bytes come from main memory"
        yield Finding("traffic", Bound.MEMORY, evidence.most(share), words, "tile for the caches, read everything once")
    words = f"{branches:.0%} of the cycles are lost to mispredicted branches"
    yield Finding("branches", Bound.LATENCY, evidence.most(branches), words, "selects and masks in place of branches")
    words = f"{walks:.0%} of the cycles are lost to page walks"
    yield Finding("page_walks", Bound.MEMORY, evidence.most(walks), words, "walk along rows, in blocks of few pages")
    if ipc >= _FAST_CORE:
        words = f"the cores are busy, at {ipc:.2g} instructions a cycle"
        remedy = "fewer instructions: wider vectors, less index arithmetic, cheaper formulas"
        yield Finding("busy_cores", Bound.COMPUTE, evidence.most(0.5), words, remedy)
    elif 0 < ipc < _SLOW_CORE:
        words = f"the cores wait, at {ipc:.2g} instructions a cycle"
        remedy = "several independent accumulators, prefetching, blocks that stay in L2"
        yield Finding("slow_cores", Bound.LATENCY, evidence.most(0.5), words, remedy)


CPU_RULES = (around, idle_cores, hot_loops, scalar_math, page_faults, counted)
