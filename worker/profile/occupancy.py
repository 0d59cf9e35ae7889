"""How many blocks of a kernel fit a multiprocessor, from what each needs: NVIDIA's occupancy calculation.

Limits by compute capability from the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability";
registers are handed out to a warp in units of 256, shared memory in units of 128 bytes, of which
the system takes 1 KiB a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_WARP, _REGISTERS, _REGISTER_UNIT, _SHARED_UNIT, _RESERVED = 32, 65_536, 256, 128, 1024
_LIMITS = {
    80: (64, 32, 164 << 10),
    86: (48, 16, 100 << 10),
    87: (48, 16, 164 << 10),
    89: (48, 24, 100 << 10),
    90: (64, 32, 228 << 10),
    100: (64, 32, 228 << 10),
    103: (64, 32, 228 << 10),
    120: (48, 24, 100 << 10),
}
"""Warps, blocks and bytes of shared memory of one multiprocessor."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What fits one multiprocessor at once."""

    blocks: int
    share: float
    """Of its warps."""
    limiter: str
    """What runs out first: `warps`, `blocks`, `registers` or `shared memory`."""


def occupancy(capability: int, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """For blocks of `threads`; None for a capability that is not in the table. `capability` is 90 for sm_90."""
    if capability not in _LIMITS or threads <= 0:
        return None
    warps, blocks, shared = _LIMITS[capability]
    of_block = math.ceil(threads / _WARP)
    of_warp = math.ceil(max(registers, 1) * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    taken = math.ceil((shared_bytes + _RESERVED) / _SHARED_UNIT) * _SHARED_UNIT
    fitting = {
        "warps": warps // of_block,
        "blocks": blocks,
        "registers": (_REGISTERS // of_warp) // of_block,
        "shared memory": shared // taken,
    }
    limiter = min(fitting, key=lambda name: fitting[name])
    return Occupancy(fitting[limiter], fitting[limiter] * of_block / warps, limiter)
