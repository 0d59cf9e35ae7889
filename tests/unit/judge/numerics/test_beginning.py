"""What a module may begin with: the same as the reference where that is computed, the like of it where it is drawn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from worker.judge.numerics.beginning import DRAWS, alike

_DRAWN: dict[str, Callable[[int], torch.Tensor]] = {
    "normal": torch.randn,
    "uniform": lambda count: torch.rand(count) * 2 - 1,
    "long tails": lambda count: torch.randn(count).exp(),
    "16 bits": lambda count: torch.randn(count).to(torch.bfloat16),
    "whole numbers": lambda count: torch.randint(0, 100, (count,)),
    "one for all": lambda count: torch.randn(1).expand(count).clone(),
}


def of(make: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    return [make() for _ in range(DRAWS)]


@pytest.mark.parametrize("count", [1, 2, 16, 509, 4096])
@pytest.mark.parametrize("kind", _DRAWN)
def test_another_draw_is_alike(kind: str, count: int) -> None:
    torch.manual_seed(count)
    draw = _DRAWN[kind]
    assert all(alike(draw(count), of(lambda: draw(count))) for _ in range(20))


@pytest.mark.parametrize(
    "found",
    [
        torch.zeros(512),
        torch.full((512,), 1e30),
        torch.full((512,), torch.nan),
        torch.randn(512, generator=torch.Generator().manual_seed(1)) / 2,
        torch.randn(512, generator=torch.Generator().manual_seed(1)) + 1,
    ],
    ids=["zeros", "huge", "NaN", "half as wide", "elsewhere"],
)
def test_what_is_drawn_otherwise_is_not(found: torch.Tensor) -> None:
    torch.manual_seed(0)
    assert not alike(found, of(lambda: torch.randn(512)))


def test_of_one_element_at_least_its_size_is_told() -> None:
    torch.manual_seed(0)
    draws = of(lambda: torch.randn(1))
    assert alike(torch.zeros(1), draws)
    assert not alike(torch.full((1,), 1e30), draws)


def test_what_is_computed_is_the_same_but_for_its_rounding() -> None:
    table = torch.outer(torch.arange(64.0), torch.arange(1.0, 17.0)).cos()
    assert alike(table.double().add(1e-6).float(), of(lambda: table.clone()))
    assert not alike(table.flip(0), of(lambda: table.clone()))
    third = torch.full((8,), 1 / 3)
    assert alike(third * (1 + 1e-7), of(lambda: third.clone()))
    assert not alike(third * 1.01, of(lambda: third.clone()))
    masked = torch.full((4, 4), -torch.inf).triu(1)
    assert alike(masked.clone(), of(lambda: masked.clone()))
    assert not alike(torch.zeros(4, 4), of(lambda: masked.clone()))
    assert not alike(torch.tensor([3, 4]), of(lambda: torch.tensor([3, 5])))
