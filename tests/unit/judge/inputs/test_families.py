"""What the judge draws stays in its domain, keeps the layout, and differs between families."""

from __future__ import annotations

import pytest
import torch

from problems.catalog import Domain
from worker.judge.inputs.families import (
    ENDS,
    FAMILIES,
    INDEX_FAMILIES,
    OFFSET,
    OWN,
    PATTERNS,
    SPARSE,
    STRIDED,
    applicable,
    draw,
)

FINITE = [family for family in FAMILIES if family != "special"]


def drawn(like: torch.Tensor, family: str = "normal", domain: Domain | None = None, seed: int = 3) -> torch.Tensor:
    domains = {"x": domain} if domain else {}
    generator = torch.Generator().manual_seed(seed)
    (value,) = draw((like,), ("x",), domains, {"classes": 7}, family, generator)
    assert isinstance(value, torch.Tensor)
    assert value.shape == like.shape and value.dtype == like.dtype and value.stride() == like.stride()
    return value


@pytest.mark.parametrize("family", FINITE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_real_values_are_finite_and_not_those_of_the_example(family: str, dtype: torch.dtype) -> None:
    like = torch.rand(64, 128).to(dtype)
    value = drawn(like, family)
    assert torch.isfinite(value).all()
    assert not torch.equal(value, like)
    if family != "shifted" or dtype == torch.float32:
        assert (value < 0).any() and (value > 0).any()
    assert dtype != torch.float16 or value.abs().max() <= 64


@pytest.mark.parametrize("family", [*FAMILIES, *INDEX_FAMILIES, *PATTERNS, ENDS, OFFSET, OWN])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 7), (3, 1), (2, 3, 4), (0, 4)])
def test_every_family_takes_every_shape(family: str, shape: tuple[int, ...]) -> None:
    drawn(torch.rand(shape), family)
    if 0 not in shape:
        drawn(torch.ones(shape, dtype=torch.int64), family)


@pytest.mark.parametrize("lanes", [2, 8, 64, 256])
def test_in_some_row_most_of_the_largest_lie_in_one_of_a_kernels_lanes(lanes: int) -> None:
    largest = drawn(torch.rand(256, 4096), STRIDED).topk(16).indices % lanes
    share = (largest == largest.mode(dim=1, keepdim=True).values).float().mean(dim=1)
    assert share.max() > 0.9 and share.min() < 0.9


def test_some_rows_are_in_order() -> None:
    steps = drawn(torch.rand(256, 512), STRIDED).diff(dim=1)
    up, down = (steps >= 0).all(dim=1), (steps <= 0).all(dim=1)
    assert 10 < up.sum() < 60 and 10 < down.sum() < 60


@pytest.mark.parametrize("every", [2, 8, 64])
def test_a_sample_of_a_row_does_not_tell_whether_it_is_zero(every: int) -> None:
    value = drawn(torch.rand(512, 1024), SPARSE)
    sampled, kept = (value[:, ::every] != 0).any(dim=1), (value != 0).sum(dim=1)
    assert ((kept == 1) & ~sampled).any() and (kept == 1024).any()


def test_one_index_is_most_of_them_or_they_are_in_order_but_for_three() -> None:
    like = torch.randint(1000, (100_000,))
    hot, ordered = drawn(like, SPARSE), drawn(like, STRIDED)
    assert 65_536 < hot.bincount().max() < 75_000
    falls = (ordered.diff() < 0).sum()
    assert 1 <= falls <= 6 and ordered.unique().numel() > 900


def test_mixed_rows_differ_in_scale_within_one_batch() -> None:
    spread = drawn(torch.rand(512, 256), "mixed").std(dim=1)
    assert spread.max() > 50 * spread.min()


def test_the_elements_of_a_vector_are_mixed_too() -> None:
    value = drawn(torch.rand(8192), "mixed")
    assert value.max() > 1e3 and value.abs().median() < 5


def test_shifted_rows_lie_around_three_means() -> None:
    means = drawn(torch.rand(512, 256), "shifted").mean(dim=1)
    assert all(bool(((means - mean).abs() < 1).any()) for mean in (1.0, 100.0, 1e4 - 8))


def test_the_ladder_scales_every_tensor_by_itself() -> None:
    like = (torch.rand(64, 64),) * 12
    names = tuple(f"x{place}" for place in range(12))
    values = draw(like, names, {}, {}, "ladder", torch.Generator().manual_seed(1))
    scales = {float(f"{value.std():.0e}") for value in values}
    assert scales <= {1e-3, 1e-2, 3.0, 30.0, 1e3} and len(scales) >= 3


def test_sign_rows_are_negative_positive_equal_and_zero() -> None:
    rows = drawn(torch.rand(256, 64), "signs")
    assert ((rows < 0).all(1)).any() and ((rows > 0).all(1)).any() and ((rows == 0).all(1)).any()
    equal = (rows == rows[:, :1]).all(1) & (rows[:, 0] != 0)
    assert equal.any()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])  # along rows or along columns, by chance
def test_cancelling_sums_are_far_smaller_than_their_terms(seed: int) -> None:
    rows = drawn(torch.rand(256, 256), "cancelling", seed=seed)
    terms = rows.abs().mean()
    assert min(rows.mean(0).abs().mean(), rows.mean(1).abs().mean()) < 1e-3 * terms


def test_one_value_in_ten_thousand_is_a_spike() -> None:
    large = drawn(torch.rand(400, 500), "spikes").abs() > 1e3
    assert 10 <= int(large.sum()) <= 20


def test_integers_sum_exactly() -> None:
    value = drawn(torch.rand(64, 64), "integers")
    assert torch.equal(value, value.round()) and value.abs().max() == 2


def test_special_values_are_few_and_most_rows_have_none() -> None:
    value = drawn(torch.rand(400, 64), "special")
    weight = draw((torch.rand(9, 9), torch.rand(9)), ("x", "w"), {}, {}, "special", torch.Generator())[1]
    assert torch.isfinite(weight).all(), "a NaN in a weight would reach every row"
    assert value.isnan().any() and (value == torch.inf).any() and (value == -torch.inf).any()
    assert not (value.abs() == torch.finfo(torch.float32).max).any(), "honest kernels overflow elsewhere than eager"
    assert ((value == 0) & value.signbit()).any()
    assert ((value != 0) & (value.abs() < torch.finfo(torch.float32).tiny)).any()
    assert int(torch.isfinite(value).all(1).sum()) > 350


@pytest.mark.parametrize("kind", ["unit", "positive"])
@pytest.mark.parametrize("cols", [64, 512, 8192])
def test_some_rows_have_a_product_that_float_can_hold(kind: str, cols: int) -> None:
    value = drawn(torch.rand(240, cols), "mixed", Domain(kind))
    products = value.double().prod(1)
    near = ((value > 0.99) & (value < 1)).double().mean(1) > 0.95
    assert 10 <= int(near.sum()) <= 120
    assert products[near].min() > 1 / 250
    assert ((value[near] > 0.2) & (value[near] < 0.8)).any(1).all(), "the logarithms of a row are not all tiny"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_last_of_every_dimension_is_often_the_largest(dtype: torch.dtype) -> None:
    value = drawn(torch.rand(80, 300).to(dtype), "ends").float()
    for along in (value, value.t()):
        assert int((along.argmax(1) == along.shape[1] - 1).sum()) > 0.15 * along.shape[0]
    assert (drawn(torch.rand(80, 300), "ends", Domain("positive")) > 0).all()
    assert value[:-1, :-1].abs().max() < 6


class TestIndices:
    def test_stay_below_their_bound(self) -> None:
        for family in INDEX_FAMILIES:
            value = drawn(torch.zeros(1000, dtype=torch.int64), family, Domain("index", "classes"))
            assert value.min() >= 0 and value.max() <= 6

    def test_without_a_bound_keep_the_examples_range(self) -> None:
        value = drawn(torch.randint(10, 50, (1000,)))
        assert value.min() >= 10 and value.max() < 50

    def test_markers_keep_their_number_and_value(self) -> None:
        like = torch.randint(0, 7, (1000,))
        like[:100] = -100
        value = drawn(like, "mixed", Domain("index", "classes"))
        assert int((value == -100).sum()) == 100 and not torch.equal(value == -100, like == -100)
        assert value[value != -100].min() >= 0 and value.max() < 7

    def test_zipf_has_hot_rows_and_uniform_has_none(self) -> None:
        like = torch.zeros(16384, dtype=torch.int32)
        hot = drawn(like, "zipf", Domain("index", 32000)).bincount()
        flat = drawn(like, "uniform", Domain("index", 32000)).bincount()
        assert hot.max() > 1000 and flat.max() < 12
        assert hot.numel() > 16000, "the frequent ids lie anywhere"

    def test_a_range_beyond_a_million_is_used_to_its_end(self) -> None:
        value = drawn(torch.zeros(4096, dtype=torch.int64), "zipf", Domain("index", 1 << 33))
        assert value.max() > 1 << 30

    def test_duplicates_and_edges(self) -> None:
        like = torch.zeros(1000, dtype=torch.int64)
        assert drawn(like, "duplicates", Domain("index", 500)).unique().numel() <= 4
        ends = drawn(like, "edges", Domain("index", 500))
        assert int((ends == 0).sum()) > 100 and int((ends == 499).sum()) > 100


class TestDomains:
    def test_positive_and_unit(self) -> None:
        for family in FINITE:
            assert drawn(torch.rand(100, 9), family, domain=Domain("positive")).min() > 0
            unit = drawn(torch.rand(100, 9), family, domain=Domain("unit"))
            assert unit.min() > 0 and unit.max() < 1

    def test_probabilities_still_sum_to_one(self) -> None:
        value = drawn(torch.softmax(torch.rand(100, 9), -1), "mixed", domain=Domain("unit"))
        assert torch.allclose(value.sum(-1), torch.ones(100), atol=1e-5)

    def test_zeros_and_ones_stay_zeros_and_ones(self) -> None:
        value = drawn((torch.rand(100, 9) < 0.5).float(), domain=Domain("unit"))
        assert set(value.unique().tolist()) == {0.0, 1.0}

    def test_fixed_tensors_masks_and_other_arguments_stay(self) -> None:
        like, mask = torch.rand(10), torch.rand(10) < 0.5
        assert torch.equal(drawn(like, domain=Domain("fixed")), like)
        assert torch.equal(drawn(mask), mask)
        assert draw((3, "mode"), ("a", "b"), {}, {}, "normal", torch.Generator()) == (3, "mode")

    @pytest.mark.parametrize("form", ["triu", "tril", "diagonal", "symmetric"])
    def test_a_matrix_keeps_its_form(self, form: str) -> None:
        plain = torch.rand(2, 16, 16)
        like = {
            "triu": plain.triu(),
            "tril": plain.tril(),
            "diagonal": torch.diag_embed(plain[0]),
            "symmetric": plain + plain.mT,
        }[form]
        value = drawn(like, "mixed")
        assert torch.equal(value, value.mT) if form == "symmetric" else bool((value[like == 0] == 0).all())
        assert not torch.equal(value, like)


def test_a_transposed_argument_stays_transposed() -> None:
    drawn(torch.rand(32, 16).t())


def test_two_seeds_differ_and_one_repeats() -> None:
    like = torch.rand(8, 8)
    assert torch.equal(drawn(like, seed=1), drawn(like, seed=1))
    assert not torch.equal(drawn(like, seed=1), drawn(like, seed=2))


class TestApplicable:
    def names(self, **arguments: object) -> tuple[str, ...]:
        return applicable(tuple(arguments), {"p": Domain("positive"), "u": Domain("unit")}, tuple(arguments.values()))

    def test_by_what_may_be_drawn(self) -> None:
        reals, ids = torch.rand(4), torch.zeros(4, dtype=torch.int64)
        assert self.names(x=reals) == FAMILIES
        assert set(self.names(x=reals, i=ids)) == {*FAMILIES, "duplicates", "edges"}
        assert self.names(i=ids) == INDEX_FAMILIES
        assert "signs" not in self.names(p=reals) and "ladder" in self.names(p=reals)
        assert self.names(u=reals) == ("normal", "mixed")
        assert self.names(n=3, mask=torch.zeros(3, dtype=torch.bool)) == (OWN,)
