"""What can hold a GPU kernel back, rule by rule: each reads the evidence and yields a finding, or none."""

from __future__ import annotations

import math
from collections.abc import Iterator

from worker.profile.findings import Evidence, Finding
from worker.profile.roofline import BOUND_SHARE, Bound

_GOOD_SECTORS = 0.8
_ENOUGH_OCCUPANCY = 0.4
"""Above this, more warps seldom help: instruction-level parallelism hides latency too (Volkov, GTC 2010)."""
_FEW_WAVES = 4.0
_TENSOR_IN_USE = 0.1
_SPILL_SHARE = 0.3


def launches(evidence: Evidence) -> Iterator[Finding]:
    """Time in which no kernel runs, and results that go through memory between kernels."""
    outside = 1 - evidence.get("device_share", 1.0)
    count = evidence.get("kernels_per_call", 1.0)
    words = f"for {outside:.0%} of a call of {evidence.point.latency_us:.3g} us no kernel runs ({count:.3g} launches)"
    remedy = "one launch for each forward, and nothing of torch around it"
    yield Finding("launches", Bound.OVERHEAD, outside, words, remedy)
    if count >= 2 and evidence.kernels:
        first = _number(evidence.kernels[0].get("share"))
        words = f"{count:.3g} kernels a call, the longest takes {first:.0%}: what is between them goes through memory"
        yield Finding("unfused", Bound.MEMORY, evidence.most(1 - first), words, "fuse them")


def memory_paths(evidence: Evidence) -> Iterator[Finding]:
    """L1, L2 and shared memory; loads that do not coalesce; bytes that are fetched twice."""
    dram, pipe = evidence.get("dram_share"), evidence.get("memory_pipe_share")
    if pipe >= BOUND_SHARE > dram:
        words = f"caches or shared memory are in use to {pipe:.0%}, DRAM to {dram:.0%}"
        yield Finding("cache_roof", Bound.MEMORY, pipe, words, "keep more in registers, wider accesses, larger tiles")
    sectors = evidence.get("sector_efficiency", 1.0)
    if sectors < _GOOD_SECTORS:
        words = f"{sectors:.0%} of the bytes in each 32-byte sector that is loaded are used"
        remedy = "neighbouring threads read neighbouring addresses; transpose through shared memory"
        yield Finding("uncoalesced", Bound.MEMORY, max(dram, pipe) * (1 - sectors), words, remedy)
    ratio = evidence.get("traffic_ratio", 1.0)
    if ratio > 1:
        words = f"{ratio:.2g} times the least bytes go through DRAM (L2 hits: {evidence.get('l2_hit_rate'):.0%})"
        remedy = "read everything once: fuse passes, order tiles for L2"
        share = max(dram, min(1.0, evidence.point.memory_share * ratio)) * (1 - 1 / ratio)
        yield Finding("traffic", Bound.MEMORY, share, words, remedy)
    conflicts = evidence.get("bank_conflicts", 1.0)
    if conflicts > 1:
        words = f"{conflicts:.2g} passes for each access to shared memory: bank conflicts"
        share = evidence.most(pipe * (1 - 1 / conflicts))
        yield Finding("bank_conflicts", Bound.MEMORY, share, words, "pad or swizzle the tile")


def tensor_cores(evidence: Evidence) -> Iterator[Finding]:
    """A matrix product without them."""
    if evidence.point.flops and evidence.half_precision and evidence.known("tensor_share"):
        share = evidence.get("tensor_share")
        if share < _TENSOR_IN_USE:
            words = f"a matrix product with the tensor cores in use to {share:.0%}"
            remedy = "tl.dot, mma or wgmma on tiles of the input's own type, fp32 accumulators"
            yield Finding("no_tensor_cores", Bound.COMPUTE, evidence.most(0.9), words, remedy)


def too_few_blocks(evidence: Evidence) -> Iterator[Finding]:
    """Multiprocessors that have nothing to do, from the beginning or at the end."""
    waves = evidence.get("waves", math.inf)
    if waves < 1:
        words = f"the grid is {waves:.2g} of what the device holds at once: multiprocessors are idle"
        remedy = "more blocks: split rows or the reduction dimension"
        yield Finding("small_grid", Bound.LATENCY, evidence.most(1 - waves), words, remedy)
    elif waves < _FEW_WAVES and waves < math.ceil(waves):
        words = f"the grid is {waves:.2g} waves: the last one leaves multiprocessors idle"
        share = evidence.most((math.ceil(waves) - waves) / math.ceil(waves))
        yield Finding("tail", Bound.LATENCY, share, words, "a persistent kernel, or tiles that divide the work evenly")


def occupancy(evidence: Evidence) -> Iterator[Finding]:
    """Too few warps, spilled registers, and what warps wait for."""
    filled = evidence.get("occupancy", 1.0)
    if filled < _ENOUGH_OCCUPANCY and evidence.get("waves", math.inf) >= 1:
        words = f"{filled:.0%} of the warps that fit are there ({evidence.get('registers'):.0f} registers a thread)"
        remedy = "fewer registers or less shared memory a block, or more independent loads in each thread"
        yield Finding("occupancy", Bound.LATENCY, evidence.most(_ENOUGH_OCCUPANCY - filled), words, remedy)
    spilled = evidence.get("spill_bytes")
    if spilled > 0:
        words = f"{spilled:.0f} bytes of local memory a thread: registers spill"
        yield Finding(
            "spills", Bound.LATENCY, evidence.most(_SPILL_SHARE), words, "smaller tiles, or more warps a block"
        )
    loads, barriers = evidence.get("stall_memory"), evidence.get("stall_barrier")
    words = f"warps wait for global memory for {loads:.0%} of their time"
    remedy = "more loads in flight: wider ones, unrolling, cp.async or num_stages"
    yield Finding("load_latency", Bound.LATENCY, evidence.most(loads), words, remedy)
    words = f"warps wait at barriers for {barriers:.0%} of their time"
    yield Finding(
        "barriers", Bound.LATENCY, evidence.most(barriers), words, "fewer barriers, or reductions within warps"
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 1.0


GPU_RULES = (launches, memory_paths, tensor_cores, too_few_blocks, occupancy)
