"""Rings from the API: the first at once, a burst together, and a ring that fails is the end of nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from api import doorbell
from api.doorbell import Bell, Doorbell

PATIENCE_S = 10.0

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def bell(number: int) -> Bell:
    return f"work_{number}", "cpu", "evaluate"


class Rung:
    """Remembers which bells came together; fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.together: list[list[Bell]] = []
        self.failures = failures
        self._loop = asyncio.get_running_loop()
        self._again = asyncio.Event()

    def __call__(self, bells: Sequence[Bell]) -> None:
        self.together.append(list(bells))
        self._loop.call_soon_threadsafe(self._again.set)
        if len(self.together) <= self.failures:
            raise RuntimeError("nobody expected this")

    async def heard(self, times: int) -> list[list[Bell]]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.together) < times:
                await self._again.wait()
                self._again.clear()
        return self.together


async def test_the_first_is_rung_for_at_once_and_a_burst_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "TOGETHER_S", 3.0)
    rung = Rung()
    bells = Doorbell(rung)
    bells.ring_soon([bell(0)])
    assert await rung.heard(1) == [[bell(0)]]
    for number in range(1, 5):
        bells.ring_soon([bell(number)])
        await asyncio.sleep(0.01)
    assert rung.together == [[bell(0)]]
    assert await rung.heard(2) == [[bell(0)], [bell(number) for number in range(1, 5)]]
    bells.close()


async def test_nothing_is_rung_for_nothing() -> None:
    rung = Rung()
    bells = Doorbell(rung)
    bells.ring_soon([])
    await asyncio.sleep(0.01)
    assert rung.together == []
    bells.close()


async def test_after_a_ring_that_failed_the_next_is_rung() -> None:
    rung = Rung(failures=1)
    bells = Doorbell(rung)
    bells.ring_soon([bell(0)])
    await rung.heard(1)
    await asyncio.sleep(0.05)
    bells.ring_soon([bell(1)])
    assert await rung.heard(2) == [[bell(0)], [bell(1)]]
    bells.close()


async def test_what_is_too_much_is_left_to_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "_MOST_WAITING", 3)
    rung = Rung()
    bells = Doorbell(rung)
    for number in range(6):
        bells.ring_soon([bell(number)])
    assert await rung.heard(1) == [[bell(0), bell(1), bell(2)]]
    bells.close()


async def test_closed_it_rings_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "TOGETHER_S", 0.05)
    rung = Rung()
    bells = Doorbell(rung)
    bells.ring_soon([bell(0)])
    await rung.heard(1)
    bells.ring_soon([bell(1)])
    bells.close()
    await asyncio.sleep(0.2)
    assert rung.together == [[bell(0)]]
