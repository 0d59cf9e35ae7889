"""Evicting a GPU's L2 cache in a way that leaves proof.

Every step adds a buffer to a shifted copy of itself into its other half: 128 MB are read and 128 MB written, each twice
an H200's L2 (60 MB). The judge owns the memory, sets its contents, and can repeat the steps: a runner that skips
one, or sleeps instead, is found out. Several steps cannot be merged into one pass, because each needs its neighbours'
results of the step before.
"""

from __future__ import annotations

import torch

HALF_WORDS = 32 << 20
"""int32 words in one half: 128 MB."""
BYTES = 2 * 4 * HALF_WORDS
_SHIFT_WORDS, _SHIFTS = 32, 2048
"""Shifts are multiples of 128 bytes: others cost up to twice the time, because loads cannot be vectorised."""
_LEAD_FROM = 1 << 20
_ADD = torch.add  # taken before a candidate is loaded: a patched torch.add changes nothing here


class Evictor:
    """One buffer of BYTES bytes, used half by half in turn."""

    def __init__(self, buffer: torch.Tensor) -> None:
        words = buffer[:BYTES].view(torch.int32)
        self.halves = (words[:HALF_WORDS], words[HALF_WORDS:])
        self.source = 0

    def step(self, nonce: int, step: int) -> None:
        """One eviction."""
        source, target = self.halves[self.source], self.halves[1 - self.source]
        shift = _SHIFT_WORDS * (1 + (nonce * 40503 + step * 7919) % _SHIFTS)
        count = HALF_WORDS - _SHIFT_WORDS * _SHIFTS
        _ADD(source[shift : shift + count], source[:count], out=target[:count])
        self.source = 1 - self.source

    def lead_in(self, nonce: int, count: int) -> None:
        """What every chain begins with: work for the device while the first calls are being launched."""
        for step in range(count):
            self.step(nonce, _LEAD_FROM + step)
