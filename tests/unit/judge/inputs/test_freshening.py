"""Fresh values differ from every prepared set, keep their domains, and are written in place."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from problems.catalog import Domain
from worker.judge.inputs import real_values
from worker.judge.inputs.families import draw
from worker.judge.inputs.freshening import Freshener, freshen

NAMES = ("x", "ids", "probability", "fixed", "mask", "triangle", "count")
DOMAINS = {"ids": Domain("index", 50), "probability": Domain("unit"), "fixed": Domain("fixed")}


def arguments(seed: int) -> tuple[object, ...]:
    like = (
        torch.rand(64, 32),
        torch.zeros(512, dtype=torch.int64),
        torch.softmax(torch.rand(40, 9), -1),
        torch.arange(10.0),
        torch.arange(10) < 4,
        torch.rand(16, 16).tril(),
        3,
    )
    return draw(like, NAMES, DOMAINS, {}, "mixed", torch.Generator().manual_seed(seed))


def test_what_may_change_changes_within_its_domain_and_the_rest_stays() -> None:
    own, others = arguments(1), [arguments(2), arguments(3)]
    x, ids, probability, fixed, mask, triangle, count = freshen(own, NAMES, DOMAINS, others, random.Random(1))
    for place, fresh in ((0, x), (1, ids), (2, probability), (5, triangle)):
        assert not any(torch.equal(fresh, prepared[place]) for prepared in (own, *others))  # type: ignore[arg-type]
    assert ids.min() >= 0 and ids.max() < 50
    assert torch.allclose(probability.sum(-1), torch.ones(40), atol=1e-5)
    assert torch.equal(triangle, triangle.tril())
    assert torch.equal(fixed, torch.arange(10.0)) and torch.equal(mask, torch.arange(10) < 4)
    assert count == 3


def test_rows_move_whole() -> None:
    own, other = arguments(1), arguments(2)
    x = freshen(own, NAMES, DOMAINS, [other], random.Random(5))[0]
    known = torch.cat([own[0], other[0]])  # type: ignore[list-item]
    shares = ((x[:, None] - x[:, None, :1]) / (known - known[:, :1])).nan_to_num(1.0)
    moved = (x[:, None, 0] == known[:, 0]) & ((shares > 0.7) & (shares < 1.1)).all(2)
    assert moved.any(1).all()


def test_no_row_of_real_numbers_comes_again_and_each_is_changed_by_a_part_of_its_own() -> None:
    """Rows that came again let a candidate keep the results of a matrix product by row."""
    own = torch.rand(64, 32) + 1
    rng = random.Random(3)
    freshener = Freshener((own,), ("x",), {}, rng)
    seen: set[tuple[float, ...]] = set()
    for _call in range(20):
        out = torch.empty_like(own)
        freshener.write((out,), (own,), [], rng)
        seen |= set(map(tuple, out.tolist()))
        source = own[(own[:, 0] == out[0, 0]).nonzero()[0, 0]]
        assert float(((out[0] - source) / (source - source[0]))[1:].std()) > 0.03
    assert len(seen) == 20 * 64


def test_the_same_seed_gives_the_same_values() -> None:
    """A result that is off is judged in full on the values of its call, made again."""
    own = torch.rand(64, 32)
    freshener = Freshener((own,), ("x",), {}, random.Random(3))
    first, second = torch.empty_like(own), torch.empty_like(own)
    for out in (first, second):
        freshener.write((out,), (own,), [(own,)], random.Random(8))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_narrow_types_are_made_fresh_too(dtype: torch.dtype) -> None:
    own = (8 * torch.rand(64, 32)).to(dtype)
    fresh = freshen((own,), ("x",), {}, [(own,)], random.Random(8))[0]
    assert fresh.dtype == dtype
    assert not torch.equal(fresh.float(), own.float())


def test_a_single_row_moves_element_by_element() -> None:
    own = (torch.arange(64).reshape(1, 64),)
    found = [freshen(own, ("ids",), {"ids": Domain("index", 64)}, [own], random.Random(seed))[0] for seed in range(3)]
    assert len({tuple(each.flatten().tolist()) for each in (*own, *found)}) == 4


def test_two_calls_differ_and_neither_keeps_the_sum() -> None:
    own, others = arguments(1), [arguments(2)]
    rng = random.Random(9)
    first, second = (freshen(own, NAMES, DOMAINS, others, rng)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert len({float(value.sum()) for value in (own[0], first, second)}) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("strides", [(32, 1), (1, 64), (40, 1)])
def test_it_writes_into_the_given_tensors_whatever_their_strides(strides: tuple[int, int]) -> None:
    own = torch.empty_strided((64, 32), strides).normal_()
    other = torch.empty_strided((64, 32), strides).normal_()
    out = torch.empty_strided((64, 32), strides).fill_(torch.nan)
    address = out.data_ptr()
    Freshener((own,), ("x",), {}, random.Random(1)).write((out,), (own,), [(other,)], random.Random(1))
    assert out.data_ptr() == address
    assert torch.isfinite(out).all()
    assert not torch.equal(out, own) and not torch.equal(out, other)


def test_arguments_in_different_memory_orders_are_rolled_too() -> None:
    own, out = torch.rand(64, 32).t(), torch.empty(32, 64)
    Freshener((own,), ("x",), {}, random.Random(1)).write((out,), (own,), [], random.Random(1))
    assert not torch.equal(out, own) and own.min() <= out.min() and out.max() <= own.max()


def test_one_element_and_one_row() -> None:
    for shape in ((), (1,), (1, 8)):
        own, other = torch.rand(shape), torch.rand(shape)
        (fresh,) = freshen((own,), ("x",), {}, [(other,)], random.Random(1))
        assert torch.equal(fresh.flatten()[:1], other.flatten()[:1])


def test_a_problem_with_nothing_to_change_says_so() -> None:
    assert not Freshener((torch.zeros(3, dtype=torch.bool), 2), ("a", "b"), {}, random.Random(1)).changes
    assert Freshener((torch.rand(3),), ("a",), {}, random.Random(1)).changes


def test_a_few_offsets_differ_from_call_to_call_and_still_ascend() -> None:
    offsets = torch.arange(0, 4_000, 10)
    domains = {"offsets": Domain("ascending")}
    rng = random.Random(4)
    first, second = (freshen((offsets,), ("offsets",), domains, [(offsets,)], rng)[0] for _ in range(2))
    assert not torch.equal(first, second)
    for fresh in (first, second):
        assert 1 <= int((fresh != offsets).sum()) <= 8 and (fresh.diff() >= 0).all()
        assert torch.equal(fresh[[0, -1]], offsets[[0, -1]])


@pytest.mark.parametrize("form", [torch.tril, torch.triu, lambda x: x + x.mT, lambda x: x.tril().triu()])
def test_a_matrix_of_some_form_keeps_it_and_is_no_multiple_of_another(form: Callable[[torch.Tensor], Any]) -> None:
    own = form(torch.rand(16, 16) + 1)
    rng = random.Random(3)
    freshener = Freshener((own,), ("x",), {}, rng)
    first, second = torch.empty_like(own), torch.empty_like(own)
    for out in (first, second):
        freshener.write((out,), (own,), [(own,)], rng)
    assert real_values.structure(first) == real_values.structure(own) != ""
    ratio = (first / second)[own != 0]
    assert float(ratio.std()) > 0.02


@pytest.mark.parametrize(
    "own", [torch.rand(4, 16, 96)[..., :32], torch.rand(32, 72)[:, :64].t(), torch.rand(64, 256, 48)[..., :16]]
)
def test_what_lies_apart_in_memory_is_made_fresh_too(own: torch.Tensor) -> None:
    rng = random.Random(3)
    freshener = Freshener((own,), ("x",), {}, rng)
    first, second = (torch.empty_strided(own.shape, own.stride()) for _call in range(2))
    for out in (first, second):
        freshener.write((out,), (own,), [(own,)], random.Random(8))
    assert torch.equal(first, second) and not torch.equal(first, own)
    assert own.min() <= first.min() and first.max() <= own.max()


def test_a_square_of_one_value_is_no_example_of_a_form() -> None:
    """Cotangents are drawn like ones: symmetric, they hid a gradient that was transposed."""
    assert real_values.structure(torch.ones(3, 8, 8)) == ""
    drawn = torch.randn(8, 8)
    assert real_values.structure(drawn + drawn.T) == "symmetric"
