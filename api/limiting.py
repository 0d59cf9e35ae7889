"""How many requests a key may send in a time, and an address that has no usable key: a sliding window in Redis.

Redis is asked and not trusted to be there: while it is away nobody is limited, which the log says.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final

import structlog
from limits import RateLimitItem, parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError

from api.errors import TooManyRequests
from db.settings import Settings

_PREFIX: Final = "kernelwright:limits"
# A request waits no longer for its own limit; the answer from a healthy server takes a millisecond.
_PATIENCE_S: Final = 0.25
_LEFT_ALONE_S: Final = 5.0
"""So long Redis is not asked again after it failed, or every request would wait for it."""

_TICKETS_PER: Final = 1000
_MOST_TICKETS: Final = 50
_TICKETS_S: Final = 1.0
"""A thousandth of a limit is taken at a time, at most fifty requests, and serves for a second: asking Redis for each
took a third of a poll's CPU. A client near its limit uses them all; what a slow one loses is counted against it, and is
far from its limit. Limits below 2,000 are counted one by one."""
_COUNTED_S: Final = 1.0
_MOST_COUNTED: Final = 10_000

log = structlog.get_logger("api")


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of a limit after this request."""

    limit: int
    remaining: int
    reset_s: int
    """Until there is more again."""

    def headers(self) -> dict[str, str]:
        """As the answer says it."""
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_s),
        }


class Limiter:
    """Counts requests. `close` it at the end."""

    def __init__(self, settings: Settings) -> None:
        self._of_key = _item(settings.rate_limit)
        self._of_address = _item(settings.rate_limit_address)
        self._not_before = 0.0
        self._counts: dict[tuple[str, str], tuple[float, float, int]] = {}
        self._tickets: dict[tuple[str, str], tuple[float, int]] = {}
        """By whom: until when they are good (monotonic), and how many there are."""
        self._pool = None if settings.redis_url is None else _pool(settings.redis_client_url)
        self._windows = None if self._pool is None else _windows(self._pool)

    async def close(self) -> None:
        """Let the connections go."""
        if self._pool is not None:
            await self._pool.aclose()

    async def key(self, key_id: str) -> Room | None:
        """Count a request of a key; None when nothing limits it. Raises TooManyRequests."""
        return await self._count(self._of_key, "key", key_id, "this key")

    async def stranger(self, address: str | None) -> None:
        """Count a request that is about to be refused for its key. Raises TooManyRequests."""
        await self._count(self._of_address, "address", address or "socket", "this address without a usable key")

    async def _count(self, item: RateLimitItem | None, kind: str, who: str, shown: str) -> Room | None:
        if item is None or self._windows is None or time.monotonic() < self._not_before:
            return None
        try:
            allowed = self._has_ticket((kind, who)) or await self._hit(self._windows, item, (kind, who))
            reset_at, remaining = await self._left(self._windows, item, (kind, who), allowed)
        except (RedisError, OSError) as error:
            self._not_before = time.monotonic() + _LEFT_ALONE_S
            log.warning("limits.unavailable", why=str(error).partition("\n")[0] or type(error).__name__)
            return None
        room = Room(item.amount, max(remaining, 0), max(math.ceil(reset_at - time.time()), 1))
        if not allowed:
            raise TooManyRequests(
                f"{shown} may send {item}: wait {room.reset_s} s, and poll with ?wait= or the event stream",
                headers=room.headers() | {"Retry-After": str(room.reset_s)},
            )
        return room

    def _has_ticket(self, who: tuple[str, str]) -> bool:
        good_until, count = self._tickets.get(who, (-math.inf, 0))
        if not count or time.monotonic() > good_until:
            return False
        self._tickets[who] = good_until, count - 1
        return True

    async def _hit(self, windows: SlidingWindowCounterRateLimiter, item: RateLimitItem, who: tuple[str, str]) -> bool:
        """Whether one more request is allowed; with it come tickets for the next ones, where the limit is large."""
        several = min(_MOST_TICKETS, item.amount // _TICKETS_PER)
        if several > 1 and await windows.hit(item, *who, cost=several):
            if len(self._tickets) >= _MOST_COUNTED:
                self._tickets.clear()
            self._tickets[who] = time.monotonic() + _TICKETS_S, several - 1
            return True
        return await windows.hit(item, *who)

    async def _left(
        self, windows: SlidingWindowCounterRateLimiter, item: RateLimitItem, who: tuple[str, str], allowed: bool
    ) -> tuple[float, int]:
        """When there is more again, and how many are left: asked once in `_COUNTED_S`, and counted down meanwhile. Only
        whether a request is allowed is asked each time."""
        asked_at, reset_at, remaining = self._counts.get(who, (-math.inf, 0.0, 0))
        if allowed and remaining > 1 and time.monotonic() < asked_at + _COUNTED_S:
            self._counts[who] = asked_at, reset_at, remaining - 1
            return reset_at, remaining - 1
        stats = await windows.get_window_stats(item, *who)
        if len(self._counts) >= _MOST_COUNTED:
            self._counts.clear()
        remaining = stats.remaining + self._tickets.get(who, (0.0, 0))[1]
        self._counts[who] = time.monotonic(), stats.reset_time, remaining
        return stats.reset_time, remaining


def _item(limit: str) -> RateLimitItem | None:
    return parse(limit) if limit else None


def _pool(url: str) -> ConnectionPool:
    return ConnectionPool.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S)


def _windows(pool: ConnectionPool) -> SlidingWindowCounterRateLimiter:
    # The URL is not looked at: the pool knows where the server is, and can be closed. The library's type for options
    # names strings and numbers alone, and hands them on to redis-py, which takes a pool.
    options = {"connection_pool": pool}
    storage = RedisStorage("async+redis://", implementation="redispy", key_prefix=_PREFIX, **options)  # type: ignore[arg-type]
    return SlidingWindowCounterRateLimiter(storage)
