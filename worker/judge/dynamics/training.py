"""One training run with a given operation in the seat, and the curves that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from worker.judge.dynamics.model import Transformer, Weights
from worker.judge.dynamics.optimisers import Optimiser

HOT_ROWS = 100
"""Rows of the table whose drift is followed: those that the text hits most."""

_SETTLE_STEPS = 8
"""After so many steps their curves are read, which waits for the device: after each one, host and device never worked
at the same time."""

Batch = tuple[torch.Tensor, torch.Tensor]
"""(tokens, labels), each int64 (sequences, length)."""


@dataclass(slots=True)
class Run:
    """What one run leaves. Equal batches, weights and optimiser: two runs differ by their operation alone."""

    losses: list[float] = field(default_factory=list)
    """Mean loss in nats, per step, before the update."""
    norms: list[float] = field(default_factory=list)
    """Norm of the whole gradient, per step."""
    hot_rows: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """(HOT_ROWS, width) fp32: the hottest rows of the table at the end."""


class Training:
    """A run that is advanced step by step, so that its caller can stop or time it."""

    def __init__(self, model: Transformer, start: Weights, optimiser: Optimiser) -> None:
        self._model, self._optimiser = model, optimiser
        self._weights = {name: weight.clone().requires_grad_() for name, weight in start.items()}
        self._curves: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.run = Run()

    def step(self, batch: Batch) -> None:
        """One forward, backward and update, which may still be under way."""
        names, leaves = list(self._weights), list(self._weights.values())
        with torch.enable_grad():
            loss = self._model(self._weights, *batch)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        used = [(name, gradient) for name, gradient in zip(names, gradients, strict=True) if gradient is not None]
        norms = torch._foreach_norm([gradient for _name, gradient in used])
        self._curves.append((loss.detach(), torch.stack(norms).norm()))
        with torch.no_grad():
            self._optimiser.step([self._weights[name] for name, _gradient in used], [found for _name, found in used])

    def settle(self) -> None:
        """Wait for the steps so far, and read what they left."""
        for loss, norm in self._curves:
            self.run.losses.append(float(loss))
            self.run.norms.append(float(norm))
        self._curves.clear()

    def finish(self) -> Run:
        """The run with the final rows."""
        self.settle()
        self.run.hot_rows = self._weights["table"].detach()[:HOT_ROWS].clone()
        return self.run


def train(
    model: Transformer,
    start: Weights,
    optimiser: Optimiser,
    batches: Iterator[Batch],
    pause: Callable[[], None] = lambda: None,
) -> Run:
    """A whole run: one step per batch, and `pause` after some, when nothing runs on the device."""
    training = Training(model, start, optimiser)
    for number, batch in enumerate(batches, 1):
        training.step(batch)
        if number % _SETTLE_STEPS == 0:
            training.settle()
            pause()
    run = training.finish()
    pause()
    return run
