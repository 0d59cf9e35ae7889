"""Scales and ticks of the drawings."""

from __future__ import annotations

import pytest

from worker.judge.certificate.svg import Scale, log_scale, power_of_ten


def test_a_linear_scale_and_its_round_ticks() -> None:
    scale = Scale(0.0, 250.0, 100.0, 600.0)
    assert (scale(0.0), scale(125.0), scale(250.0)) == (100.0, 350.0, 600.0)
    assert scale.ticks() == [0, 50, 100, 150, 200, 250]


def test_a_logarithmic_scale_covers_whole_decades() -> None:
    scale = log_scale([3e-6, 2e-3], 0.0, 400.0)
    assert (scale.low, scale.high) == pytest.approx((1e-6, 1e-2))
    assert scale(1e-4) == pytest.approx(200.0)
    assert scale.ticks() == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2])


def test_values_outside_and_useless_ones_stay_on_the_drawing() -> None:
    scale = log_scale([0.0, float("inf"), float("nan"), 1e-3], 10.0, 20.0)
    assert scale(0.0) == 10.0
    assert scale(1e9) == 20.0


def test_powers_are_written_as_such() -> None:
    assert [power_of_ten(value) for value in (1e-4, 1.0, 10.0, 1e12)] == ["10⁻⁴", "1", "10", "10¹²"]
