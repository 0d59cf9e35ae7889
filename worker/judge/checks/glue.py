"""What one call of an honest candidate may spend in torch, on this machine, now.

Allocation, sizes and views took 1 to 5 us a call, and the autograd engine 6 to 13 us (two quiet cores). Beside six
other judges on 16 cores the same took three times as long, and honest backward kernels seemed to be torch's by a third.
So the judge does some glue itself, at the time of the samples, and what it allows grows as that slows down.
"""

from __future__ import annotations

import time
from typing import Any

import torch

_GLUE_US, _BACKWARD_US = 10.0, 30.0
_ROUND_TRIP_US = 30.0
"""An autograd function that only allocates, forward and back, on two quiet cores."""
_WATCHED_S = 0.05
_SLOWEST = 5.0
"""More is not allowed for: beyond it a machine is too busy to say whose code runs."""


def allowance_us(*, backward: bool, slowness: float) -> float:
    """Microseconds of one call, beside what filling tensors takes."""
    return slowness * (_GLUE_US + (_BACKWARD_US if backward else 0.0))


def slowness() -> float:
    """How much longer glue takes now than on a quiet machine: 1 to 5. Takes 50 ms.

    By the mean, because a thread that lost its core in the midst of glue is found there as long as it waits.
    """
    given, gradient = torch.zeros(8, requires_grad=True), torch.ones(8)
    _round_trip(given, gradient)  # the first starts the engine
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < _WATCHED_S:
        _round_trip(given, gradient)
        count += 1
    return min(_SLOWEST, max(1.0, elapsed / count * 1e6 / _ROUND_TRIP_US))


def _round_trip(given: torch.Tensor, gradient: torch.Tensor) -> None:
    made = _Allocating.apply(given)  # type: ignore[no-untyped-call]
    torch.autograd.grad(made, given, gradient)


class _Allocating(torch.autograd.Function):
    """What is left of an operation without its kernel."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(given)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(gradient)
