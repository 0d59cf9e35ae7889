"""What a hardware id belongs to: `widening("nvidia-h200")` is the id, its compile target, family, vendor and class.

Knowledge is written for any of these: a fact about `hopper` holds for an H200, a fact about `sm_100` for a B200 and not
for a consumer Blackwell, though both are `blackwell`.
"""

from __future__ import annotations

import functools
import re

_NVIDIA = ("nvidia", "gpu")
_AMD = ("amd", "gpu")

_CHIPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"h100|h200|h800|h20|gh200", ("sm_90", "hopper", *_NVIDIA)),
    (r"a100|a800|a30", ("sm_80", "ampere", *_NVIDIA)),
    (r"a2|a10g?|a16|a40|a[2-6]\d00|30[5-9]0", ("sm_86", "ampere", *_NVIDIA)),
    (r"l4|l20|l40s?|ada|40[5-9]0", ("sm_89", "ada", *_NVIDIA)),
    (r"g?b[12]00", ("sm_100", "blackwell", *_NVIDIA)),
    (r"g?b300", ("sm_103", "sm_100", "blackwell", *_NVIDIA)),
    (r"blackwell|50[5-9]0", ("sm_120", "blackwell", *_NVIDIA)),
    (r"gb10", ("sm_121", "sm_120", "blackwell", *_NVIDIA)),
    (r"mi210|mi250x?", ("gfx90a", "cdna", *_AMD)),
    (r"mi300[ax]?|mi325x", ("gfx942", "cdna", *_AMD)),
    (r"mi35[05]x", ("gfx950", "cdna", *_AMD)),
    (r"nvidia", _NVIDIA),
    (r"amd", _AMD),
)
"""A word of a hardware id, and what a chip with that word belongs to; the first row that fits counts.

Where a target has a close relative with the same programming model (sm_103 and sm_100), knowledge of that holds too.
"""

_CPU = ("x86",)
"""What `cpu` means: the id says no more, and x86 is what its workers were so far."""

NAMES = frozenset({"cpu", *_CPU, *(name for _pattern, names in _CHIPS for name in names)})
"""Everything that knowledge can be about, besides single hardware ids."""


@functools.lru_cache(maxsize=256)
def widening(hardware: str) -> tuple[str, ...]:
    """The id and all that it belongs to, from the narrowest to the widest; the id alone when nothing is known of it."""
    if hardware == "cpu":
        return (hardware, *_CPU)
    words = hardware.split("-")
    for pattern, names in _CHIPS:
        if any(re.fullmatch(pattern, word) for word in words):
            return (hardware, *names)
    return (hardware,)


GENERIC = frozenset({"nvidia", "amd", "gpu"})
"""Names too wide to share a kernel or a lesson by."""


@functools.lru_cache(maxsize=256)
def kin(hardware: str) -> str:
    """The family by which kernels and lessons are shared: `hopper` for an H200, `x86` for `cpu`; else the id itself."""
    return [name for name in widening(hardware) if name not in GENERIC][-1]
