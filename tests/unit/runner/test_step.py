"""Forward and backward as one call, and what comes between them."""

from __future__ import annotations

from typing import Any

import torch

from worker.runner.step import Step


class _Scale(torch.autograd.Function):
    last: torch.Tensor

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        _Scale.last = x
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grads[0] * 3.0, (grads[0] * _Scale.last).sum()


class _Global(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Scale.apply(x, self.scale)  # type: ignore[no-untyped-call]
        return found


def test_a_backward_that_uses_the_last_forward_shows_only_where_forwards_interleave() -> None:
    model = _Global()
    step = Step(model, model, ("scale",), 1)
    mine, other, grad = torch.full((4,), 2.0), torch.full((4,), 5.0), torch.ones(4)
    assert step(mine, grad)[2].item() == 8.0
    assert step.interleaved((mine, grad), [(other, grad)])[2].item() == 20.0
    honest = torch.nn.Linear(4, 2)
    right = Step(honest, honest, ("weight", "bias"), 1)
    for one, two in zip(
        right(mine, torch.ones(2)), right.interleaved((mine, torch.ones(2)), [(other, torch.ones(2))]), strict=True
    ):
        assert torch.equal(one, two)
