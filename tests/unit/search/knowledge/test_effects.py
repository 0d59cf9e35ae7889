"""Effects and their pooling."""

from __future__ import annotations

import math
import random

import pytest

from search.knowledge.effects import Effect, effect_between, pooled


def test_an_effect_is_a_difference_of_logs_with_the_errors_of_both() -> None:
    effect = effect_between(1.0, (0.9, 1.1), 2.0, (1.9, 2.1))
    assert effect is not None
    assert effect.log == pytest.approx(math.log(2))
    sds = [math.log(1.1 / 0.9) / 2 / 1.96, math.log(2.1 / 1.9) / 2 / 1.96]
    assert effect.sd == pytest.approx(math.hypot(*sds), rel=1e-3)
    assert effect.sign == 1


@pytest.mark.parametrize("missing", [0, 1])
def test_without_an_interval_there_is_no_effect(missing: int) -> None:
    intervals = [(0.9, 1.1), (0.9, 1.1)]
    known: list[tuple[float, float] | None] = [
        None if place == missing else pair for place, pair in enumerate(intervals)
    ]
    assert effect_between(1.0, known[0], 2.0, known[1]) is None
    assert effect_between(0.0, (0.9, 1.1), 2.0, (0.9, 1.1)) is None


def test_no_interval_is_narrower_than_what_differs_between_two_runs() -> None:
    effect = effect_between(1.0, (1.0, 1.0), 1.005, (1.005, 1.005))
    assert effect is not None and effect.sign == 0


def around(log: float, sd: float) -> Effect:
    return Effect(log, log - 1.96 * sd, log + 1.96 * sd)


def test_agreeing_effects_pool_to_a_narrower_one() -> None:
    together = pooled([around(0.5, 0.1), around(0.52, 0.1), around(0.48, 0.1)])
    assert together is not None
    assert together.log == pytest.approx(0.5)
    assert together.sd == pytest.approx(0.1 / math.sqrt(3), rel=1e-3)
    assert pooled([]) is None


def test_the_spread_between_kernels_widens_the_interval() -> None:
    apart = pooled([around(1.0, 0.01), around(-0.2, 0.01), around(0.4, 0.01)])
    assert apart is not None
    assert apart.sign == 0
    assert apart.log == pytest.approx(0.4, abs=0.01)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    dice = random.Random(7)
    held = 0
    for _ in range(400):
        effects = [around(dice.gauss(dice.gauss(0.3, 0.1), 0.05), 0.05) for _ in range(12)]
        found = pooled(effects)
        assert found is not None
        held += found.low <= 0.3 <= found.high
    assert 0.88 <= held / 400 <= 0.98
