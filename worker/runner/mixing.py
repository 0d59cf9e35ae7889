"""Values that arrive with the call itself, so that no result can be prepared before the clock starts.

Just before a timed call a few elements of one input, one per row, are overwritten with a value that follows from a
number the candidate has not seen before. On a CPU the judge writes them through shared memory; on a GPU, where a write
by the judge would switch contexts in the middle of a sample, the runner does it as part of the chain.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

_GOLDEN_BITS = 11400714819323198485  # as below, for 64 bits
_SPREAD = 2654435761  # Knuth's multiplicative hash: neighbouring numbers give unlike values
_RANGE = 1 << 32
_GOLDEN = 0.6180339887498949
_VARIANTS = 1 << 16
MOST = 1 << 12
"""Elements written at most. 65,536 scattered ones took 45 us on an H200, a third of the softmax behind them; 4,096 take
5 us."""
SPAN = 1 << 21
"""Elements among which those of one call lie, elsewhere in every call. In memory that was mapped in small pages (see
`memory`) 4,096 elements all over 273 MB took 44 us after a call that had filled the page tables with its own, and 3 us
in a null chain (H200)."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Where and in which range values are written."""

    tensor: int
    """Index among the tensors of an argument list."""
    stride: int
    """Every stride-th element of a stretch of the flattened tensor is written."""
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Mixer:
    """Writes a mix's values into tensors on one device: judge and runner do it alike."""

    def __init__(self, mix: Mix, device: str) -> None:
        self._mix = mix
        # A Weyl sequence: no two of its elements are alike, so that no column or row becomes constant.
        share = torch.frac(torch.arange(MOST + _VARIANTS, dtype=torch.float64) * _GOLDEN)
        self._table = (mix.low + (mix.high - mix.low) * share).to(device)

    def apply(self, tensors: list[torch.Tensor], number: int) -> None:
        """Write the values that belong to `number` into one contiguous tensor of an argument list."""
        flat, stride = tensors[self._mix.tensor].view(-1), self._mix.stride
        first = number * _GOLDEN_BITS % max(1, flat.numel() - SPAN)
        target = flat[first + number % stride : first + SPAN : stride]
        start = number * _SPREAD % _VARIANTS
        target.copy_(self._table[start : start + target.numel()])


def step_number(nonce: int, step: int) -> int:
    """The number of one call in a chain."""
    return (nonce * 31 + step * _SPREAD) % _RANGE
