"""Medians of ratios and their intervals."""

from __future__ import annotations

import math
import random

import pytest

from worker.judge.timing import stats


def noisy(ratio: float, sigma: float, count: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [math.log(ratio) + rng.gauss(0, sigma) for _ in range(count)]


def test_geomean_and_ratio() -> None:
    assert stats.geomean([1.0, 4.0]) == pytest.approx(2.0)
    assert stats.ratio(stats.log_ratios([2.0, 4.0, 600.0], [1.0, 2.0, 2.0])) == pytest.approx(2.0)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(60):
        low, high = stats.interval([noisy(1.0, 0.02, 31, seed)], random.Random(seed))
        hits += low <= 1.0 <= high
    assert hits >= 52


def test_a_real_difference_is_outside_the_interval() -> None:
    low, high = stats.interval([noisy(1.2, 0.02, 31, 1), noisy(1.1, 0.02, 31, 2)], random.Random(0))
    assert 1.1 < low < math.sqrt(1.2 * 1.1) < high < 1.2


def test_the_interval_is_reproducible() -> None:
    series = [noisy(1.5, 0.1, 15, 3)]
    assert stats.interval(series, random.Random(7)) == stats.interval(series, random.Random(7))
