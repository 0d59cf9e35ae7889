"""The one layer of retries, on a clock that only sleeping moves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.retrying import MAX_DELAY_S, ProviderFailure, Retries


class Script:
    """Failures in order, then an answer; each try takes `each_s`."""

    def __init__(self, failures: list[ProviderFailure], each_s: float = 0.0) -> None:
        self.now = 1_000.0
        self.failures = list(failures)
        self.each_s = each_s
        self.slept: list[float] = []
        self.left: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def attempt(self, left_s: float) -> str:
        self.left.append(left_s)
        self.now += self.each_s
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def run(self, deadline_s: float = 600.0, max_attempts: int = 6) -> tuple[str, int]:
        return Retries(deadline_s, max_attempts, lambda: self.now, self.sleep, random.Random(0)).run(self.attempt)


def down(retry_after_s: float | None = None, retryable: bool = True) -> ProviderFailure:
    return ProviderFailure("down", retryable=retryable, retry_after_s=retry_after_s)


def test_it_tries_until_there_is_an_answer() -> None:
    script = Script([down(), down(), down()])
    assert script.run() == ("answer", 4)
    assert [0.5 <= slept <= 4.0 for slept in script.slept] == [True] * 3


def test_it_waits_as_long_as_the_provider_asks_and_a_little_longer() -> None:
    script = Script([down(30.0), down(0.0)])
    script.run()
    assert 30.0 < script.slept[0] <= 33.0
    assert script.slept[1] == 0.0


@pytest.mark.parametrize(
    ("failures", "limits", "attempts"),
    [
        ([down(retryable=False)], {}, 1),
        ([down() for _ in range(9)], {"max_attempts": 3}, 3),
        ([down(5.0) for _ in range(9)], {"deadline_s": 12.0}, 3),
        ([down(3600.0)], {}, 1),
    ],
)
def test_it_gives_up(failures: list[ProviderFailure], limits: dict[str, float], attempts: int) -> None:
    script = Script(failures)
    with pytest.raises(ProviderFailure) as caught:
        script.run(**limits)  # type: ignore[arg-type]
    assert caught.value.attempts == attempts
    assert len(script.left) == attempts


def test_each_try_is_told_what_is_left() -> None:
    script = Script([down(10.0)], each_s=20.0)
    script.run(deadline_s=60.0)
    assert script.left[0] == 60.0
    assert 29.0 <= script.left[1] <= 30.0


@given(
    st.lists(st.none() | st.floats(0, 5_000), max_size=12),
    st.floats(0.0, 100.0),
    st.floats(2.0, 500.0),
    st.integers(1, 8),
)
def test_sleeps_never_pass_the_deadline(
    asked: list[float | None], each_s: float, deadline_s: float, max_attempts: int
) -> None:
    script = Script([down(seconds) for seconds in asked], each_s)
    try:
        assert script.run(deadline_s, max_attempts)[1] <= max_attempts
    except ProviderFailure as failure:
        assert failure.attempts <= max_attempts
    assert script.now <= 1_000.0 + deadline_s + each_s
    assert all(slept <= MAX_DELAY_S for slept, wish in zip(script.slept, asked, strict=False) if wish is None)
