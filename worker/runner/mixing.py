"""Values that arrive with the call itself, so that no result can be prepared before the clock starts.

Just before a timed call a few elements of one input, one per row, are overwritten with a value that follows from a
number the candidate has not seen before. On a CPU the judge writes them through shared memory; on a GPU, where a write
by the judge would switch contexts in the middle of a sample, the runner does it as part of the chain.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

_SPREAD = 2654435761  # Knuth's multiplicative hash: neighbouring numbers give unlike values
_RANGE = 1 << 32


@dataclass(frozen=True, slots=True)
class Mix:
    """Where and in which range values are written."""

    tensor: int
    """Index among the tensors of an argument list."""
    stride: int
    """Every stride-th element of the flattened tensor is written."""
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def apply(mix: Mix, tensors: list[torch.Tensor], number: int) -> None:
    """Write into one contiguous tensor."""
    share = (number * _SPREAD) % _RANGE / _RANGE
    flat = tensors[mix.tensor].view(-1)
    flat[number % mix.stride :: mix.stride].fill_(mix.low + (mix.high - mix.low) * share)


def step_number(nonce: int, step: int) -> int:
    """The number of one call in a chain."""
    return (nonce * 31 + step * _SPREAD) % _RANGE
