"""Cases: inputs with their fp64 truth, the eager result, and the tolerance between honest and broken arithmetic.

Prepared once per problem and workload and reused for every candidate; the truth costs far more than the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from worker.judge.numerics.comparison import Comparison, compare
from worker.judge.numerics.parking import parked
from worker.judge.numerics.tolerance import Tolerance
from worker.runner.values import tensors_of

PARKED_BYTES = 256 << 20
"""Larger cases keep their truth, four times a 16-bit output, and eager's result in the host's memory, and pay a second
for each look at them. Of 115 GB that the judge of the triangle update's seven shapes held on an H200 40 were truths;
with those parked, 11 of an H100's 79 GiB were results of eager."""


@dataclass(frozen=True, slots=True)
class Case:
    """One draw of inputs with everything needed to judge an output."""

    family: str
    inputs: tuple[Any, ...]
    truth: tuple[torch.Tensor, ...]
    """fp64 results on the already rounded inputs and parameters, so that both sides see the same bits. In the host's
    memory after `parked`: see `exact`."""
    eager: tuple[torch.Tensor, ...]
    """In the host's memory after `parked`: see `honest`."""
    tolerances: tuple[Tolerance, ...]
    names: tuple[str, ...]
    """What each output is called in reports: `output0`, or `grad:weight` for a gradient."""
    hits: tuple[torch.Tensor | None, ...]
    """For outputs whose rows are selected by an index input: how often each row is."""
    changed: tuple[bool, ...] = ()
    """For each input: whether the reference itself writes into it, so that a candidate may too."""
    unsure: tuple[torch.Tensor | None, ...] = ()
    """For each output of the special family: where an infinity may have either sign, or be NaN, or NaN an infinity."""
    parked_from: tuple[torch.device, ...] = ()
    """The device of each output, where they wait in the host's memory."""

    @property
    def device(self) -> torch.device:
        """Where it is judged."""
        return self._device_of(0)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept of it in the memory of the device that it is for."""
        kept = [*tensors_of(self.inputs), *self.truth, *self.eager]
        return sum(tensor.nbytes for tensor in kept if tensor.device == self.device)

    @property
    def results(self) -> list[int]:
        """The places of what forward returns; gradients follow."""
        return [place for place, name in enumerate(self.names) if not name.startswith("grad:")]

    @property
    def finite(self) -> bool:
        """Whether this draw lies in the reference's domain: mostly finite (log of a negative number is not)."""
        return all(float(torch.isfinite(exact).double().mean()) > 0.999 for exact in self.truth if exact.numel())

    def judge(self, outputs: tuple[torch.Tensor, ...]) -> list[Comparison]:
        """Compare every output with its truth."""
        places = range(len(self.truth))
        return [self._compared(index, output) for index, output in zip(places, outputs, strict=True)]

    def _compared(self, index: int, output: torch.Tensor) -> Comparison:
        """One output with its truth: on a device no other's is there meanwhile."""
        unsure = self.unsure[index] if self.unsure else None
        exact, honest = self.exact(index), self.honest(index)
        return compare(output, exact, honest, self.tolerances[index], self.hits[index], unsure)

    def exact(self, index: int) -> torch.Tensor:
        """One output's truth, where it is judged."""
        return self.truth[index].to(self._device_of(index))

    def honest(self, index: int) -> torch.Tensor:
        """One output as eager computes it, likewise."""
        return self.eager[index].to(self._device_of(index))

    def parked(self) -> Case:
        """The same with truth and eager's results in the host's memory, from where a comparison takes one output's at a
        time."""
        devices = tuple(map(self._device_of, range(len(self.eager))))
        return replace(
            self, truth=tuple(map(parked, self.truth)), eager=tuple(map(parked, self.eager)), parked_from=devices
        )

    def _device_of(self, index: int) -> torch.device:
        return self.parked_from[index] if self.parked_from else self.eager[index].device
