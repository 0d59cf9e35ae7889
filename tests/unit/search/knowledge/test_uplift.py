"""The arithmetic of uplift: intervals that keep their level, and what is retired."""

from __future__ import annotations

import random
import statistics

import pytest

from search.knowledge.uplift import MIN_EACH, Arm, Sample, harmful, lift, means, proportions, student_quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    # Tables of Student's t.
    [(0.975, 5, 2.5706), (0.975, 10, 2.2281), (0.975, 30, 2.0423), (0.995, 10, 3.1693), (0.995, 100, 2.6259)],
)
def test_quantiles_of_student(probability: float, freedom: float, value: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(value, rel=1.5e-3)


@pytest.mark.parametrize(
    ("hits", "low", "high"),
    # Newcombe 1998, table II, method 10.
    [((56, 70, 48, 80), 0.0524, 0.3339), ((9, 10, 3, 10), 0.1705, 0.8090), ((10, 10, 0, 20), 0.6791, 1.0000)],
)
def test_newcombes_own_examples(hits: tuple[int, int, int, int], low: float, high: float) -> None:
    found = proportions(*hits)
    assert found is not None
    assert found.low == pytest.approx(low, abs=6e-4)
    assert found.high == pytest.approx(high, abs=6e-4)


def sample(values: list[float]) -> Sample:
    return Sample(len(values), statistics.fmean(values), statistics.variance(values))


def test_the_interval_of_means_holds_the_truth_as_often_as_it_says() -> None:
    dice = random.Random(3)
    held = 0
    for _ in range(500):
        one = sample([dice.gauss(1.0, 0.5) for _ in range(12)])
        other = sample([dice.gauss(0.7, 0.1) for _ in range(9)])
        found = means(one, other)
        assert found is not None
        held += found.low <= 0.3 <= found.high
    assert 0.92 <= held / 500 <= 0.98


def test_too_little_is_no_answer() -> None:
    assert means(Sample(1, 1.0, 0.0), Sample(9, 1.0, 1.0)) is None
    assert proportions(0, 0, 1, 2) is None
    assert lift(Arm(), Arm()).gained is None
    same = means(Sample(3, 1.0, 0.0), Sample(3, 0.5, 0.0))
    assert same is not None and (same.low, same.high) == (0.5, 0.5)


def arm(proposals: int, correct: int, mean: float) -> Arm:
    return Arm(proposals, correct, Sample(proposals, mean, 0.01))


def test_what_slows_kernels_down_is_harmful() -> None:
    reason = harmful(arm(30, 20, 0.1), arm(20, 14, 0.4))
    assert reason is not None and "negative lift in log-speedup gained: -0.300" in reason
    assert "30 proposals with it and 20 without" in reason


def test_what_makes_proposals_wrong_is_harmful() -> None:
    reason = harmful(arm(30, 2, 0.3), arm(20, 18, 0.3))
    assert reason is not None and "share of correct proposals" in reason


def test_what_helps_or_is_hardly_known_stays() -> None:
    assert harmful(arm(30, 20, 0.4), arm(20, 14, 0.1)) is None
    assert harmful(arm(MIN_EACH - 1, 0, 0.0), arm(50, 50, 0.9)) is None
    assert harmful(arm(10, 6, 0.2), arm(10, 7, 0.25)) is None


def test_hundreds_of_harmless_items_are_rarely_retired() -> None:
    dice = random.Random(11)
    retired = 0
    for _ in range(300):
        shown, withheld = ([dice.gauss(0.2, 0.3) for _ in range(n)] for n in (40, 12))
        right = [sum(dice.random() < 0.6 for _ in range(n)) for n in (40, 12)]
        retired += harmful(Arm(40, right[0], sample(shown)), Arm(12, right[1], sample(withheld))) is not None
    assert retired <= 9
