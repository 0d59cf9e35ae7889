"""One training run with a given operation in the seat, and the curves that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from worker.judge.dynamics.model import Transformer, Weights
from worker.judge.dynamics.optimisers import Optimiser

HOT_ROWS = 100
"""Rows of the table whose drift is followed: those that the text hits most."""

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
        self.run = Run()

    def step(self, batch: Batch) -> None:
        """One forward, backward and update."""
        names, leaves = list(self._weights), list(self._weights.values())
        with torch.enable_grad():
            loss = self._model(self._weights, *batch)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        used = [(name, gradient) for name, gradient in zip(names, gradients, strict=True) if gradient is not None]
        self.run.losses.append(float(loss.detach()))
        self.run.norms.append(float(torch.stack([gradient.norm() for _name, gradient in used]).norm()))
        with torch.no_grad():
            self._optimiser.step([self._weights[name] for name, _gradient in used], [found for _name, found in used])

    def finish(self) -> Run:
        """The run with the final rows."""
        self.run.hot_rows = self._weights["table"].detach()[:HOT_ROWS].clone()
        return self.run


def train(
    model: Transformer,
    start: Weights,
    optimiser: Optimiser,
    batches: Iterator[Batch],
    pause: Callable[[], None] = lambda: None,
) -> Run:
    """A whole run: one step per batch, and `pause` after each."""
    training = Training(model, start, optimiser)
    for batch in batches:
        training.step(batch)
        pause()
    return training.finish()
