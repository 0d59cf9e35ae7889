"""What the judge draws stays in its domain, keeps the layout, and differs between families."""

from __future__ import annotations

import pytest
import torch

from problems.catalog import Domain
from worker.judge.inputs import FAMILIES, draw


def drawn(like: torch.Tensor, family: str = "normal", domain: Domain | None = None, seed: int = 3) -> torch.Tensor:
    domains = {"x": domain} if domain else {}
    generator = torch.Generator().manual_seed(seed)
    (value,) = draw((like,), ("x",), domains, {"classes": 7}, family, generator)
    assert isinstance(value, torch.Tensor)
    assert value.shape == like.shape and value.dtype == like.dtype and value.stride() == like.stride()
    return value


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_real_values_are_finite_signed_and_not_those_of_the_example(family: str, dtype: torch.dtype) -> None:
    like = torch.rand(64, 128).to(dtype)
    value = drawn(like, family)
    assert torch.isfinite(value).all()
    assert (value < 0).any() and (value > 0).any()
    assert not torch.equal(value, like)


def test_mixed_rows_differ_in_scale_within_one_batch() -> None:
    spread = drawn(torch.rand(512, 256), "mixed").std(dim=1)
    assert spread.max() > 50 * spread.min()


def test_indices_stay_below_their_bound() -> None:
    value = drawn(torch.zeros(1000, dtype=torch.int64), domain=Domain("index", "classes"))
    assert value.min() == 0 and value.max() == 6


def test_indices_without_a_bound_keep_the_examples_range() -> None:
    value = drawn(torch.randint(0, 50, (1000,)))
    assert value.min() >= 0 and value.max() < 50


def test_positive_and_unit_domains() -> None:
    assert drawn(torch.rand(100), domain=Domain("positive")).min() > 0
    unit = drawn(torch.rand(100), domain=Domain("unit"))
    assert unit.min() >= 0 and unit.max() <= 1


def test_fixed_tensors_and_other_arguments_stay() -> None:
    like = torch.rand(10)
    assert torch.equal(drawn(like, domain=Domain("fixed")), like)
    assert draw((3, "mode"), ("a", "b"), {}, {}, "normal", torch.Generator()) == (3, "mode")


def test_a_transposed_argument_stays_transposed() -> None:
    drawn(torch.rand(32, 16).t())


def test_two_seeds_differ_and_one_repeats() -> None:
    like = torch.rand(8, 8)
    assert torch.equal(drawn(like, seed=1), drawn(like, seed=1))
    assert not torch.equal(drawn(like, seed=1), drawn(like, seed=2))
