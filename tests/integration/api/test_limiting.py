"""A key's limit by tickets that are taken several at a time: not one request more, and far fewer questions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr

from api import limiting
from api.errors import TooManyRequests
from api.limiting import Limiter
from cli.embedded.valkey import EmbeddedValkey
from db.settings import Settings


async def allowed(limiter: Limiter, who: str, times: int) -> tuple[int, int, list[int]]:
    """How many of so many requests came through, how often Redis was asked, and what was said to be left."""
    windows, asked = limiter._windows, 0
    assert windows is not None
    hit = windows.hit

    async def counted(*args: Any, **named: Any) -> bool:
        nonlocal asked
        asked += 1
        return await hit(*args, **named)

    windows.hit = counted  # type: ignore[method-assign]  # counts, and asks the real one
    left = []
    try:
        for _ in range(times):
            room = await limiter.key(who)
            assert room is not None
            left.append(room.remaining)
    except TooManyRequests:
        return len(left), asked, left
    finally:
        await limiter.close()
    return len(left), asked, left


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that stands still for 0.25 s must not be taken for a Redis that does."""
    monkeypatch.setattr(limiting, "_PATIENCE_S", 30.0)


def limiter(valkey: EmbeddedValkey, limit: str) -> Limiter:
    return Limiter(Settings(rate_limit=limit, redis_url=SecretStr(valkey.url)))


def test_a_large_limit_is_asked_for_by_the_thousandth_and_kept_to_the_request(
    valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "_TICKETS_S", 3600.0)
    came, asked, left = asyncio.run(allowed(limiter(valkey, "5003/hour"), "a large one", 6000))
    assert came == 5003
    assert asked < 1100
    assert left[0] == 5002
    assert left[-1] == 0
    assert all(before - 6 <= after <= before for before, after in zip(left, left[1:], strict=False))


def test_a_small_limit_is_counted_one_by_one(valkey: EmbeddedValkey) -> None:
    came, asked, left = asyncio.run(allowed(limiter(valkey, "7/hour"), "a small one", 9))
    assert (came, asked) == (7, 8)
    assert left == [6, 5, 4, 3, 2, 1, 0]


def test_tickets_are_not_kept(valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiting, "_TICKETS_S", -1.0)
    came, asked, _left = asyncio.run(allowed(limiter(valkey, "50000/hour"), "a slow one", 20))
    assert came == asked == 20
