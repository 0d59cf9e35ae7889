"""Fresh memory that is full of NaN: what a kernel forgets to write, or reads without having written, shows.

Only while outputs are verified, not while they are timed. Filling is done in the candidate's own process, so a hostile
candidate could undo it; nothing hangs on it for those, because the judge's own output places are poisoned too, and
timed values are new each time. It finds honest mistakes: an accumulator that starts from what `torch.empty` returned.
"""

from __future__ import annotations

import ctypes

import torch

_M_PERTURB = -6
"""glibc's mallopt: new memory is filled with the complement of the value's low byte, freed memory with that byte."""
_NEW_MEMORY_ALL_ONES = 0x100  # low byte 0, so new memory is 0xFF: NaN in every float type, -1 in every integer type
_BLOCKS = ((1 << 19, 16), (64 << 20, 2))
"""(bytes, count): the caching allocator serves requests below 1 MiB from one pool and larger ones from another."""


def poison_new_host_memory(*, on: bool) -> None:
    """Make malloc hand out memory of all ones (posix_memalign, which torch uses, included)."""
    ctypes.CDLL(None).mallopt(_M_PERTURB, _NEW_MEMORY_ALL_ONES if on else 0)


def poison_free_device_memory(largest_bytes: int) -> None:
    """Fill the caching allocator's free blocks with ones: the next `torch.empty` is cut from them."""
    torch.cuda.empty_cache()
    sizes = [size for size, count in _BLOCKS for _ in range(count)] + [2 * largest_bytes]
    held = [torch.empty(size, dtype=torch.uint8, device="cuda:0").fill_(0xFF) for size in sizes]
    torch.cuda.synchronize()
    del held
