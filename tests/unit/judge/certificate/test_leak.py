"""The leak slope is a median: one jump of an allocator is no leak, a steady climb is."""

from __future__ import annotations

import pytest

from worker.judge.certificate.system.leak import _PLENTY_BYTES, _SURE_BATCHES, theil_sen


def test_a_steady_climb_is_its_slope() -> None:
    assert theil_sen([(calls, 1000 + 64 * calls) for calls in range(0, 1001, 100)]) == pytest.approx(64)


def test_a_single_jump_is_none() -> None:
    points = [(calls, 5e6 if calls > 0 else 0.0) for calls in range(0, 1001, 100)]
    assert theil_sen(points) == 0.0


def test_a_single_jump_is_none_when_the_check_stops_early() -> None:
    batches = range(_SURE_BATCHES + 1)
    assert theil_sen([(100 * batch, 2.0 * _PLENTY_BYTES if batch else 0.0) for batch in batches]) == 0.0
