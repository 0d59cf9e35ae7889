"""What changed between a kernel and its child: tunables, techniques and a few lines of the difference.

A change has a key by which the same change is known again in another job: the tunables that were raised or lowered, or
the techniques that came and went. Techniques are found by their spelling in the source. An edit that touches none of
them has no key, and nothing is learned from it: what cannot be named cannot be told to the next search.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from search.tunables import read_space
from search.types import Params, ParamValue

MAX_PARTS = 3
"""Techniques or tunables in one change. With more of them nobody knows which one did it."""

MAX_LINES = 3_000
"""Of each source: comparing takes time with the square of them in the worst case."""

MAX_NOTE_LINES = 10
MAX_NOTE = 600

TECHNIQUES: tuple[tuple[str, str, str], ...] = (
    ("openmp", r"#pragma omp parallel|at::parallel_for", "threads over the outer loop"),
    ("openmp simd", r"#pragma omp (?:parallel for )?simd", "OpenMP SIMD pragmas"),
    ("avx512", r"_mm512_", "AVX-512 intrinsics"),
    ("avx2", r"_mm256_", "AVX2 intrinsics"),
    ("vector extension", r"vector_size\s*\(", "the compiler's vector types"),
    ("restrict", r"__restrict", "restrict pointers"),
    ("unrolling", r"#pragma (?:GCC )?unroll|tl\.static_range", "unrolled loops"),
    ("several accumulators", r"\b(?:acc|sum|s)[_]?0\b[\s\S]{0,400}\b(?:acc|sum|s)[_]?3\b", "several accumulators"),
    ("streaming stores", r"_mm\d*_stream_|__stcs|__builtin_nontemporal_store|\.cs\b", "stores past the caches"),
    ("prefetch", r"_mm_prefetch|__builtin_prefetch|prefetch\.global", "software prefetching"),
    ("polynomial exp", r"exp_?poly|\bexp_ps\b|fast_exp|exp2_approx|ldexp", "a polynomial exponential"),
    ("fast math", r"-ffast-math|--use_fast_math|__expf\b|__fdividef\b", "fast-math formulas"),
    ("tiling", r"\bTILE\w*\s*=|\bBLOCK_[MN]\b", "tiles"),
    ("packing", r"\bpack(?:ed|_[ab])\b", "packed operands"),
    ("online softmax", r"\bm_(?:new|next|prev|i)\b[\s\S]{0,400}\bl_(?:i|new|prev)\b|online", "the online softmax"),
    ("welford", r"welford", "Welford's variance"),
    ("vector loads", r"\b(?:float4|uint4|int4|double2|float2)\b|ld\.global\.v4", "vector loads"),
    ("shared memory", r"__shared__", "shared memory"),
    ("warp shuffles", r"__shfl_", "warp shuffles"),
    ("tensor cores", r"\btl\.dot\b|\bwmma::|\bw?g?mma\.(?:sync|async|m\d)", "tensor cores"),
    ("async copies", r"cp\.async|__pipeline_|cuda::pipeline|memcpy_async", "asynchronous copies"),
    ("atomics", r"\batomicAdd|\btl\.atomic_|#pragma omp atomic", "atomic additions"),
    ("persistent programs", r"persistent|NUM_SMS|multiProcessorCount", "persistent programs"),
    ("cache hints", r"eviction_policy|cache_modifier|__ldcs|__ldg|L2::", "cache hints"),
    ("block order for L2", r"GROUP_M|swizzle", "an order of blocks that reuses L2"),
    ("launch bounds", r"__launch_bounds__", "launch bounds"),
    ("half arithmetic", r"__half2|__nv_bfloat162|hfma2", "packed half arithmetic"),
    ("split reduction", r"split_?k|SPLIT|partial_sums|partials", "a reduction in two stages"),
)
"""Name, spelling in a source, and words for a sentence."""

_SPELLINGS = tuple((name, re.compile(spelling, re.IGNORECASE)) for name, spelling, _words in TECHNIQUES)
_WORDS = {name: words for name, _spelling, words in TECHNIQUES}


@dataclass(frozen=True, slots=True)
class Change:
    """What was done: `key` for comparing, `says` as the start of a sentence, `note` the difference itself."""

    key: str
    says: str
    note: str


def change_between(parent: str, child: str) -> Change | None:
    """What the child's source does differently, or None where that has no name."""
    moved = _moved(_values(parent), _values(child))
    before, after = techniques(parent), techniques(child)
    added, removed = sorted(after - before), sorted(before - after)
    if added or removed:
        if len(added) + len(removed) > MAX_PARTS:
            return None
        key = ", ".join([*(f"+{name}" for name in added), *(f"-{name}" for name in removed)])
        return Change(key, _said(added, removed), difference(parent, child))
    if not moved or len(moved) > MAX_PARTS:
        return None
    key = ", ".join(f"{name} {direction}" for name, direction, _values in moved)
    says = ", ".join(f"{_VERBS[direction]} {name}" for name, direction, _values in moved)
    return Change(key, says, ", ".join(f"{name}: {values}" for name, _direction, values in moved))


_VERBS = {
    "up": "raising",
    "down": "lowering",
    "on": "switching on",
    "off": "switching off",
    "changed": "changing",
}


def techniques(source: str) -> frozenset[str]:
    """The names of the techniques that a source uses, by their spelling."""
    return frozenset(name for name, spelling in _SPELLINGS if spelling.search(source))


def difference(parent: str, child: str) -> str:
    """The first changed lines, those of comments and blanks aside."""
    before, after = (source.splitlines()[:MAX_LINES] for source in (parent, child))
    lines = difflib.unified_diff(before, after, lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    telling = [line.rstrip() for line in changed if line[1:].strip() and not line[1:].lstrip().startswith(_COMMENTS)]
    return "\n".join(telling[:MAX_NOTE_LINES])[:MAX_NOTE]


_COMMENTS = ("# ", "//")
"""Not every `#`: pragmas and includes are code."""


def _said(added: list[str], removed: list[str]) -> str:
    parts = []
    if added:
        parts.append("adding " + " and ".join(_WORDS[name] for name in added))
    if removed:
        parts.append("dropping " + " and ".join(_WORDS[name] for name in removed))
    return " while ".join(parts)


def _values(source: str) -> Params:
    space = read_space(source)
    return space.defaults if space is not None else {}


def _moved(before: Params, after: Params) -> list[tuple[str, str, str]]:
    """Name, direction and `64 -> 128` of each tunable that both have with different values."""
    if before.keys() != after.keys():
        return []
    return [
        (name, _direction(before[name], after[name]), f"{before[name]!r} -> {after[name]!r}")
        for name in sorted(before)
        if before[name] != after[name]
    ]


def _direction(before: ParamValue, after: ParamValue) -> str:
    if isinstance(after, bool):
        return "on" if after else "off"
    if isinstance(before, int | float) and isinstance(after, int | float):
        return "up" if after > before else "down"
    return "changed"
