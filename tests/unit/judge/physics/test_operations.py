"""The counter agrees with torch's own where that works, and counts backwards, where that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from worker.judge.physics.operations import OperationCounter


def attention() -> torch.Tensor:
    return functional.scaled_dot_product_attention(*(torch.randn(2, 4, 16, 8) for _ in range(3)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.randn(8, 16) @ torch.randn(16, 4),
        lambda: functional.linear(torch.randn(3, 8, 16), torch.randn(4, 16), torch.randn(4)),
        lambda: torch.einsum("bij,bjk->bik", torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
        lambda: functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)),
        lambda: torch.softmax(torch.randn(8, 8), -1),
        attention,
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_it_counts_what_torch_counts(call: Callable[[], object], inference: bool) -> None:
    with torch.inference_mode(inference):
        with OperationCounter() as counter:
            call()
        with FlopCounterMode(display=False) as theirs:
            call()
    assert counter.total == theirs.get_total_flops()


def test_a_backward_is_counted() -> None:
    layer, inputs = nn.Linear(16, 4), torch.randn(8, 16).requires_grad_()
    with OperationCounter() as counter:
        outputs = layer(inputs)
        torch.autograd.grad(outputs, [inputs, *layer.parameters()], torch.ones_like(outputs))
    assert counter.total == 3 * 2 * 8 * 16 * 4
