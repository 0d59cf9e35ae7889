"""Where to look first: one direction for each seed and rewrite, so that the same question gets different answers.

Diverse plans, not diverse temperatures, make an ensemble explore.
"""

from __future__ import annotations

CPU = (
    "touch memory as few times as possible: fuse everything into one pass over each row that fits in cache",
    "keep every vector unit busy: several independent accumulators, no branches and no library calls in the inner loop",
    "spread the work evenly over the cores: chunks large enough that starting a thread does not show",
    "block for the caches: tile so that what is read twice is still in L2, and stream the rest",
    "use a cheaper formula: polynomial or exponent-bits approximations accurate to fp32 instead of libm calls",
)
GPU = (
    "one pass over global memory: each program keeps its rows in registers or shared memory from load to store",
    "wide, coalesced loads: 16 bytes a thread, and enough of them in flight to hide latency",
    "expose more parallelism: split long rows or the reduction dimension over programs and combine the parts",
    "feed the tensor cores: tiles, software pipelining of loads and an order of tiles that reuses L2",
    "fewer, fatter threads: more independent work in each thread, less synchronisation and index arithmetic",
    "a persistent kernel: as many programs as the device holds at once, each walking over many tiles",
)


def angle(language: str, ordinal: int) -> str:
    """The direction for the candidate with that ordinal."""
    return (CPU if language == "cpp" else GPU)[angle_index(language, ordinal)]


def angle_index(language: str, ordinal: int) -> int:
    """Which of the language's directions that is."""
    count = len(CPU if language == "cpp" else GPU)
    # One further each time round: rewrites come every few candidates and would otherwise meet the same few directions.
    return (ordinal + ordinal // count) % count
