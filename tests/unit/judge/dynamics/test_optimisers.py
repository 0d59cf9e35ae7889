"""Each optimiser minimises, and AdamW hides what gradient descent shows."""

from __future__ import annotations

import pytest
import torch

from worker.judge.dynamics.model import Shape, Transformer, initial_weights
from worker.judge.dynamics.optimisers import Adafactor, AdamW, Optimiser, Sgd, optimisers
from worker.judge.dynamics.text import labels_of, zipf_tokens
from worker.judge.dynamics.training import train


def trained(optimiser: Optimiser, scale: float = 1.0, steps: int = 60) -> list[torch.Tensor]:
    """Weights pulled towards ones and twos, their gradients scaled."""
    goals = [torch.ones(6, 4), torch.full((5,), 2.0)]
    weights = [torch.zeros(6, 4), torch.zeros(5)]
    for _step in range(steps):
        optimiser.step(weights, [scale * (weight - goal) for weight, goal in zip(weights, goals, strict=True)])
    return weights


@pytest.mark.parametrize("name", optimisers(32))
def test_each_moves_towards_the_minimum(name: str) -> None:
    matrix, vector = trained(optimisers(32)[name]())
    assert 0.1 < float(matrix.mean()) < 1.3
    assert 0.1 < float(vector.mean()) < 2.6


@pytest.mark.parametrize("width", [32, 256])
@pytest.mark.parametrize("name", optimisers(32))
def test_a_model_of_each_width_trains_steadily(name: str, width: int) -> None:
    shape, generator = Shape(width, 1000, width, classes=64), torch.Generator().manual_seed(3)
    start = initial_weights(shape, generator)
    tokens = [zipf_tokens(2, 128, shape.vocabulary, generator) for _step in range(24)]
    batches = iter([(each, labels_of(each, shape.classes)) for each in tokens])
    losses = train(Transformer(torch.float32), start, optimisers(width)[name](), batches).losses
    assert max(losses) < 1.2 * losses[0], "it does not start with chaos"
    assert sum(losses[-4:]) / 4 < 0.9 * losses[0]


def test_gradient_descent_is_the_textbooks() -> None:
    weights = [torch.tensor([1.0])]
    rule = Sgd(rate=0.1, momentum=0.5)
    rule.step(weights, [torch.tensor([1.0])])
    rule.step(weights, [torch.tensor([1.0])])
    assert float(weights[0]) == pytest.approx(1.0 - 0.1 - 0.15)


def test_adamw_agrees_with_torchs() -> None:
    own, theirs = torch.ones(3), torch.ones(3, requires_grad=True)
    rule = AdamW(rate=1e-2, beta1=0.9, beta2=0.95, decay=0.01)
    torchs = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.01, eps=1e-8)
    generator = torch.Generator().manual_seed(1)
    for _step in range(5):
        gradient = torch.randn(3, generator=generator)
        rule.step([own], [gradient])
        theirs.grad = gradient.clone()
        torchs.step()
    assert torch.allclose(own, theirs.detach(), atol=1e-6)


def test_adamw_hides_a_gradient_that_is_always_too_small_and_descent_shows_it() -> None:
    full, part = (trained(AdamW(rate=1e-2), scale)[0] for scale in (1.0, 0.38))
    assert torch.allclose(full, part, rtol=0.02)
    full, part = (trained(Sgd(rate=1e-2), scale)[0] for scale in (1.0, 0.38))
    assert float(part.mean() / full.mean()) < 0.6


def test_adafactor_keeps_a_row_and_a_column_of_a_matrix() -> None:
    rule = Adafactor(rate=1e-2)
    rule.step([torch.zeros(6, 4), torch.zeros(5)], [torch.ones(6, 4), torch.ones(5)])
    assert [tuple(rows.shape) for rows in rule._rows] == [(6,), (5,)]
    assert tuple(rule._columns[0].shape) == (4,)
