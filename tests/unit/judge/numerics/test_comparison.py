"""Thresholds lie between honest and broken arithmetic, and no slice hides."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from problems.catalog import Precision
from worker.judge.numerics.calibration import error_of_honest
from worker.judge.numerics.comparison import compare
from worker.judge.numerics.measures import samples, slice_error
from worker.judge.numerics.precision import degrade, representable, working_type
from worker.judge.numerics.tolerance import Tolerance, tolerance


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


FP32 = tolerance(1e-7, 5e-4, torch.float32)


class TestTolerance:
    def test_between_its_anchors(self) -> None:
        near, far = tolerance(2e-6, 2e-4, torch.float32), tolerance(2e-6, 1e-1, torch.float32)
        assert near.sees_precision and far.sees_precision
        assert near.threshold == pytest.approx(5e-5)  # a quarter of the reject anchor
        assert far.threshold == pytest.approx((2e-6 * 1e-1) ** 0.5)

    def test_an_accept_anchor_of_zero_still_leaves_room_for_a_sequential_sum(self) -> None:
        assert tolerance(0.0, 1e-3, torch.float32).threshold > 1e-5

    def test_a_family_that_cannot_see_precision_says_so(self) -> None:
        limit = tolerance(2e-5, 3e-5, torch.float32)
        assert not limit.sees_precision
        assert limit.threshold == pytest.approx(1.6e-4)

    def test_nearly_equal_numbers_may_be_added_one_by_one(self) -> None:
        n = 8191
        terms = torch.exp(1e-5 * normal(n)).float()
        exact = terms.double() / terms.double().sum()
        honest = terms / terms.cumsum(0, dtype=torch.float32)[-1]
        limit = tolerance(0.0, 1e-6, torch.float32)
        assert slice_error(honest, exact)[0] < limit.threshold < 1e-4
        assert tolerance(0.0, 0.0, torch.bfloat16).threshold < 2e-2


class TestCompare:
    def test_honest_rounding_passes(self) -> None:
        truth = normal(64, 512)
        assert compare(truth.float(), truth, truth.float(), FP32).passed

    def test_one_wrong_row_in_many_is_found_and_named(self) -> None:
        truth = normal(4096, 64)
        wrong = truth.float()
        wrong[1234] *= 1.01
        found = compare(wrong, truth, truth.float(), FP32)
        assert not found.passed
        assert found.worst_slice == "row 1234"

    def test_one_wrong_column_is_found(self) -> None:
        truth = normal(4096, 64)
        wrong = truth.float()
        wrong[:, 17] += 1e-2
        assert not compare(wrong, truth, truth.float(), FP32).passed

    def test_a_single_wrong_element_is_found_where_every_slice_average_hides_it(self) -> None:
        truth = normal(8, 65536)
        loose = tolerance(1e-2, 1.0, torch.float32)
        wrong = truth.float()
        wrong[3, 4] += 6.0
        error, _where = slice_error(wrong, truth)
        assert error < loose.threshold
        assert not compare(wrong, truth, truth.float(), loose).passed

    def test_zeros_never_pass_however_small_the_truth(self) -> None:
        truth = normal(32, 32) * 1e-20
        assert not compare(torch.zeros(32, 32), truth, truth.float(), FP32).passed

    @pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
    def test_a_non_finite_value_where_there_is_none(self, poison: float) -> None:
        truth = normal(32, 32)
        wrong = truth.float()
        wrong[5, 6] = poison
        assert not compare(wrong, truth, truth.float(), FP32).passed

    def test_a_missing_infinity_and_one_of_the_wrong_sign(self) -> None:
        truth = normal(32, 32)
        truth[0, 0] = math.inf
        right = truth.float()
        assert compare(right, truth, right, FP32).passed
        for value in (0.0, -math.inf):
            wrong = right.clone()
            wrong[0, 0] = value
            assert not compare(wrong, truth, right, FP32).passed

    def test_where_eager_and_truth_disagree_on_an_infinity_either_is_right(self) -> None:
        truth = normal(32, 32)
        eager = truth.float()
        eager[0, 0] = math.nan  # gelu(inf) is NaN in eager fp32 and inf in fp64
        truth[0, 0] = math.inf
        assert compare(truth.float(), truth, eager, FP32).passed
        assert compare(eager, truth, eager, FP32).passed

    def test_integers_are_exact(self) -> None:
        right = torch.arange(100)
        wrong = right.clone()
        wrong[7] += 1
        truth = right.double()
        assert compare(right, truth, right, FP32).passed
        assert compare(wrong, truth, right, FP32).reason == "1 of 100 integers differ"


class TestWorkingType:
    def test_a_policy_of_16_bits_loosens_float32_and_nothing_else(self) -> None:
        half = Precision("bfloat16", tf32=True)
        assert working_type(torch.float32, half) is torch.bfloat16
        assert working_type(torch.float32, Precision("float16")) is torch.float16
        assert working_type(torch.float32, Precision("float32", tf32=True)) is torch.float32
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64):
            assert working_type(dtype, half) is dtype

    def test_products_of_16_bit_factors_pass_under_it_and_those_of_8_bits_do_not(self) -> None:
        left, right = normal(256, 512).float(), normal(512, 128, seed=1).float()
        truth = left.double() @ right.double()
        rough = degrade(left, torch.bfloat16, tf32_allowed=True), degrade(right, torch.bfloat16, tf32_allowed=True)
        reject, _where = slice_error(rough[0].double() @ rough[1].double(), truth)
        limit = tolerance(1e-7, reject, torch.bfloat16)
        assert limit.sees_precision
        for dtype in (torch.bfloat16, torch.float16):
            found = (left.to(dtype).double() @ right.to(dtype).double()).float()
            assert compare(found, truth, truth.float(), limit).passed
            assert not compare(found, truth, truth.float(), tolerance(1e-7, 5e-4, torch.float32)).passed
        eight = left.to(torch.float8_e4m3fn).double() @ right.to(torch.float8_e4m3fn).double()
        assert not compare(eight.float(), truth, truth.float(), limit).passed

    def test_the_bias_that_renormalised_rounding_leaves_is_no_fault_of_16_bit_arithmetic(self) -> None:
        truth = normal(64, 512)
        shrunk = (truth * (1 - 2e-5)).float()
        assert not compare(shrunk, truth, truth.float(), tolerance(1e-7, 5e-3, torch.float32)).passed
        assert compare(shrunk, truth, truth.float(), tolerance(1e-7, 1e-1, torch.bfloat16)).passed

    def test_a_few_rows_that_are_far_off_are_no_factor_in_all(self) -> None:
        truth = normal(1024, 64).bfloat16().double()
        limit = tolerance(0.1, 1.0, torch.bfloat16)  # inputs on which rounding decides whole rows
        judged = partial(compare, truth=truth, eager=truth.bfloat16(), limit=limit)

        def with_rows(period: int, factor: float = 1.0) -> torch.Tensor:
            found = truth * factor
            found[::period] *= 1.33
            return found.bfloat16()

        assert judged(with_rows(32)).passed
        assert "biased" in judged(with_rows(32, factor=1.006)).reason
        assert "biased" in judged(with_rows(8)).reason


class TestSamples:
    """Rounding errors of equal rows are one error."""

    def test_equal_rows_are_one_and_rows_that_bring_next_to_nothing_none(self) -> None:
        rows = torch.stack([torch.full((4096,), 0.7, dtype=torch.float64), 1e-9 * normal(4096)], 1).reshape(-1, 1)
        assert samples(rows, torch.bfloat16) == pytest.approx(1.0)
        assert samples(normal(64, 8).repeat(5, 1), torch.float32) == pytest.approx(64, rel=0.3)

    def test_heavy_tails_are_a_sample_for_each_block_at_least(self) -> None:
        assert samples(normal(4096, 1) / normal(4096, 1, seed=1), torch.bfloat16) > 32
        assert samples(normal(0, 4), torch.bfloat16) == 0


class TestDegrade:
    def test_fp32_loses_what_tf32_loses(self) -> None:
        values = normal(1000).float()
        rounded = degrade(values, torch.float32, tf32_allowed=False)
        relative = ((rounded - values) / values).abs()
        assert 2**-13 < float(relative.max()) <= 2**-11
        assert torch.equal(rounded.view(torch.int32) & 0x1FFF, torch.zeros(1000, dtype=torch.int32))

    def test_rounds_to_nearest_across_a_power_of_two(self) -> None:
        value = torch.tensor([1.0 - 2.0**-20])
        assert degrade(value, torch.float32, tf32_allowed=False).item() == 1.0

    def test_keeps_integers_and_specials(self) -> None:
        assert torch.equal(degrade(torch.arange(5), torch.int64, tf32_allowed=False), torch.arange(5))
        special = torch.tensor([math.inf, -math.inf, 0.0])
        assert torch.equal(degrade(special, torch.float32, tf32_allowed=False), special)
        assert degrade(torch.tensor([math.nan]), torch.float32, tf32_allowed=False).isnan().all()


def test_a_bf16_accumulated_matmul_is_over_the_threshold_and_a_sequential_fp32_one_is_under() -> None:
    a, b = normal(64, 4096, seed=1).float(), normal(4096, 32, seed=2).float()
    truth = a.double() @ b.double()
    coarse = (
        degrade(a, torch.float32, tf32_allowed=False).double() @ degrade(b, torch.float32, tf32_allowed=False).double()
    )
    limit = tolerance(slice_error(a @ b, truth)[0], slice_error(coarse, truth)[0], torch.float32)
    assert limit.sees_precision
    sequential = torch.zeros(64, 32)
    for k in range(4096):
        sequential += a[:, k : k + 1] * b[k]
    rounded = torch.zeros(64, 32, dtype=torch.bfloat16)
    for k in range(0, 4096, 64):
        rounded += (a[:, k : k + 64] @ b[k : k + 64]).bfloat16()
    assert compare(sequential, truth, a @ b, limit).passed
    assert not compare(rounded.float(), truth, a @ b, limit).passed
    assert not compare((a.bfloat16().float() @ b.bfloat16().float()), truth, a @ b, limit).passed


def test_rows_that_many_ids_hit_are_a_slice_and_a_growing_error_is_named() -> None:
    truth = normal(512, 32)
    hits = torch.ones(512, dtype=torch.int64)
    hits[:3] = 900
    limit = tolerance(1e-3, 1e-1, torch.bfloat16)
    right = truth.bfloat16()
    assert compare(right, truth, right, limit, hits).passed
    wrong = right.clone()
    wrong[:3] = (truth[:3] * 1.04).bfloat16()
    found = compare(wrong, truth, right, limit, hits)
    assert not found.passed
    assert "accumulate it in float32" in found.reason
    assert "accumulate" not in compare(wrong, truth, right, limit).reason


def test_where_eager_is_nan_without_need_the_number_nan_and_zero_are_right() -> None:
    truth = normal(32, 64)
    eager = truth.float()
    eager[3] = math.nan
    for value, right in ((math.nan, True), (0.0, True), (7.0, False)):
        output = truth.float()
        output[3] = value
        assert compare(output, truth, eager, FP32).passed == right
    zeros = truth.float()
    zeros[4] = 0.0
    assert not compare(zeros, truth, eager, FP32).passed


class TestEightBitFloats:
    """The truth of a quantised output lies on its grid."""

    EXACT = (64 * torch.randn(64, 256, generator=torch.Generator().manual_seed(3))).clamp(-448, 448)
    TRUTH = EXACT.to(torch.float8_e4m3fn).double()
    LIMIT = tolerance(0.0, 0.05, torch.float8_e4m3fn)

    def judged(self, values: torch.Tensor) -> bool:
        output = values.to(torch.float8_e4m3fn)
        return compare(output, self.TRUTH, self.TRUTH.to(torch.float8_e4m3fn), self.LIMIT).passed

    def test_another_rounding_before_the_last_one_passes(self) -> None:
        tipped = self.EXACT * (1 + 1e-4 * normal(64, 256, seed=4).float())
        assert int((tipped.to(torch.float8_e4m3fn).float() != self.TRUTH.float()).sum()) > 10
        assert self.judged(tipped)

    def test_bfloat16_before_the_last_rounding_passes(self) -> None:
        assert self.judged(self.EXACT.bfloat16().float())

    @pytest.mark.parametrize("factor", [0.0, 0.5, 0.99, 1.01, 2.0])
    def test_another_scale_fails(self, factor: float) -> None:
        assert not self.judged(self.EXACT * factor)

    def test_cutting_off_instead_of_rounding_fails(self) -> None:
        bits = self.EXACT.view(torch.int32) >> 20 << 20  # of the mantissa, three bits are left
        assert not self.judged(bits.view(torch.float32))

    def test_one_wrong_row_and_one_nan_fail(self) -> None:
        row, nan = self.EXACT.clone(), self.EXACT.clone()
        row[17] = row[18]
        nan[5, 5] = math.nan
        assert not self.judged(row)
        assert not self.judged(nan)

    def test_one_precision_lower_keeps_one_bit(self) -> None:
        values = torch.tensor([1.0, 1.125, 1.375, 1.75, -3.25, math.nan]).to(torch.float8_e4m3fn)
        lower = degrade(values, values.dtype, tf32_allowed=False).float()
        assert lower[:5].tolist() == [1.0, 1.0, 1.5, 2.0, -3.0]
        assert bool(lower[5].isnan())


class TestOverflow:
    """Sums of size 10^5 in fp16, which ends at 65,504."""

    truth = 1e5 * normal(512, 512)
    eager = truth.half()
    limit = tolerance(1e-4, 0.5, torch.float16)

    def test_an_eager_result_that_overflows_does_not_make_everything_right(self) -> None:
        honest = error_of_honest(self.eager, self.truth, None)
        broken = error_of_honest(representable(self.truth * 1.25, torch.float16), self.truth, None, torch.float16)
        limit = tolerance(honest, broken, torch.float16)
        assert limit.threshold < 1e-2
        wrong = torch.where(self.truth.abs() < 5e4, self.truth * 1.1, self.truth).half()
        assert not compare(wrong, self.truth, self.eager, limit).passed

    @pytest.mark.parametrize(("size", "accepted"), [(65_510.0, True), (65_600.0, True), (60_000.0, False)])
    def test_near_the_end_either_side_of_it_is_right(self, size: float, accepted: bool) -> None:
        truth = self.truth.clone()
        truth[7, 7] = size
        eager = truth.half()
        other = eager.clone()
        other[7, 7] = torch.inf if torch.isfinite(eager[7, 7]) else 65_504.0
        assert compare(other, truth, eager, self.limit).passed == accepted
        assert compare(eager, truth, eager, self.limit).passed

    def test_however_wide_the_tolerance_only_near_the_end(self) -> None:
        truth = self.truth.clamp(-5e4, 5e4)
        wide = tolerance(10.0, 20.0, torch.float16)
        other = truth.half()
        other[7, 7] = torch.inf * truth[7, 7].sign()
        assert "infinity" in compare(other, truth, truth.half(), wide).reason

    def test_with_the_right_sign(self) -> None:
        truth = self.truth.clone()
        truth[7, 7] = 65_510.0
        other = truth.half()
        other[7, 7] = -torch.inf
        assert "sign" in compare(other, truth, truth.half(), self.limit).reason

    def test_rows_of_no_elements_are_compared(self) -> None:
        nothing = torch.zeros(64, 0, dtype=torch.float64)
        assert compare(nothing.half(), nothing, nothing.half(), self.limit).passed


def test_where_eager_alone_is_not_finite_nothing_finite_but_the_truth_is_right() -> None:
    truth = torch.arange(1.0, 65.0, dtype=torch.float64).reshape(8, 8)
    eager = truth.float()
    eager[0, 0] = torch.nan
    limit = Tolerance(1e-6, 1e-2, 1e-5, sees_precision=True)
    for value, right in ((torch.nan, True), (torch.inf, True), (-torch.inf, True), (1.0, True), (1.5, False)):
        output = truth.float()
        output[0, 0] = value
        assert compare(output, truth, eager, limit).passed == right, value
    output = truth.float()
    output[0, 1] = torch.inf
    assert not compare(output, truth, eager, limit).passed
