"""Four optimisers in a few lines each, on fp32 master weights.

Short ones of our own: what is compared are runs that differ in one gradient, so every operation of an update should be
in sight, and torch.optim brings Dynamo with it, 2 s to import. All weights at once where that is the same arithmetic:
of some 550 operations that the host issued for a step of the micro model, a fifth were one weight's part of an update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


class Optimiser:
    """Updates weights in place from gradients."""

    def step(self, weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """One update; the lists are in the same order at every step."""
        raise NotImplementedError


@dataclass(slots=True)
class Sgd(Optimiser):
    """Gradient descent, with heavy-ball momentum when `momentum` > 0 (Polyak, 1964)."""

    rate: float
    momentum: float = 0.0
    _velocity: list[torch.Tensor] = field(default_factory=list)

    def step(self, weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        if self.momentum:
            self._velocity = self._velocity or [torch.zeros_like(weight) for weight in weights]
            torch._foreach_mul_(self._velocity, self.momentum)
            torch._foreach_add_(self._velocity, gradients)
            gradients = self._velocity
        torch._foreach_sub_(weights, gradients, alpha=self.rate)


@dataclass(slots=True)
class AdamW(Optimiser):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019). Divides by the gradient's own size, so that a
    row whose gradient is always 38 % of what it should be trains as if nothing were wrong."""

    rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    decay: float = 0.01
    _steps: int = 0
    _means: list[torch.Tensor] = field(default_factory=list)
    _squares: list[torch.Tensor] = field(default_factory=list)

    def step(self, weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        self._means = self._means or [torch.zeros_like(weight) for weight in weights]
        self._squares = self._squares or [torch.zeros_like(weight) for weight in weights]
        self._steps += 1
        size = self.rate / (1 - self.beta1**self._steps)
        correction = (1 - self.beta2**self._steps) ** 0.5
        torch._foreach_lerp_(self._means, gradients, 1 - self.beta1)
        torch._foreach_mul_(self._squares, self.beta2)
        torch._foreach_addcmul_(self._squares, gradients, gradients, value=1 - self.beta2)
        torch._foreach_mul_(weights, 1 - self.rate * self.decay)
        roots = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(roots, correction)
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(weights, self._means, roots, value=-size)


@dataclass(slots=True)
class Adafactor(Optimiser):
    """Second moments of matrices kept as a row and a column (Shazeer and Stern, 2018), no momentum, updates clipped at
    a root mean square of 1, a fixed rate."""

    rate: float
    decay: float = 0.8
    _steps: int = 0
    _rows: list[torch.Tensor] = field(default_factory=list)
    _columns: list[torch.Tensor] = field(default_factory=list)

    def step(self, weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        if not self._rows:
            self._rows = [weight.new_zeros(weight.shape[: max(1, weight.dim() - 1)]) for weight in weights]
            self._columns = [weight.new_zeros(weight.shape[-1]) for weight in weights]
        self._steps += 1
        kept = 1 - self._steps**-self.decay
        for place, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            update = gradient / self._scale(place, gradient.square().add_(1e-30), kept)
            update /= update.square().mean().sqrt().clamp_min(1.0)
            weight.sub_(update, alpha=self.rate)

    def _scale(self, place: int, squares: torch.Tensor, kept: float) -> torch.Tensor:
        rows, columns = self._rows[place], self._columns[place]
        if squares.dim() < 2:
            return rows.mul_(kept).add_(squares, alpha=1 - kept).sqrt()
        rows.mul_(kept).add_(squares.mean(-1), alpha=1 - kept)
        columns.mul_(kept).add_(squares.mean(0), alpha=1 - kept)
        return (rows / rows.mean()).sqrt().unsqueeze(-1) * columns.sqrt()


_WIDE = 100


def optimisers(width: int) -> dict[str, Callable[[], Optimiser]]:
    """By the name that reports use, for a micro model of this width: about the highest rates at which it is steady.

    Above them it is chaos: with SGD at 0.5 a model of 256 went from a loss of 4.8 to 46, and honest kernels of swiglu
    and rmsnorm_residual ended 40 and 18 standard deviations from others in single rows (H100)."""
    if width < _WIDE:
        return {
            "SGD": lambda: Sgd(rate=0.5),
            "SGD with momentum": lambda: Sgd(rate=0.05, momentum=0.9),
            "AdamW": lambda: AdamW(rate=3e-3),
            "Adafactor": lambda: Adafactor(rate=1e-2),
        }
    return {
        "SGD": lambda: Sgd(rate=0.1),
        "SGD with momentum": lambda: Sgd(rate=0.05, momentum=0.9),
        "AdamW": lambda: AdamW(rate=1e-3),
        "Adafactor": lambda: Adafactor(rate=1e-3),
    }
