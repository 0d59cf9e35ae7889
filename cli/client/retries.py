"""When a call is made again: after a broken connection, a 502, 503, 504 or a 429, and how long it is waited for.

What is done once may not be done twice, so it depends on the call (`Call.again`):

    safe     reading, and what may be repeated without harm: after any of them
    unsent   what makes something new: only when it cannot have been done, that is when nobody listened, or after a 429
    never    a question about this very moment
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx2

from cli.client.calls import Call
from cli.client.errors import retry_after

_AWAY: Final = frozenset({502, 503, 504})
_TOO_MANY: Final = 429
# Nothing was sent when one of these is raised.
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call is made again. Pauses double, and each is shortened at random by up to a half: clients that lost
    the same server must not come back at the same moment."""

    attempts: int = 4
    first_pause_s: float = 0.25
    longest_pause_s: float = 5.0
    longest_retry_after_s: float = 60.0
    """A server that wants us back later than this is believed at once: its error is raised."""

    def pause_s(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """The pause after so many failures, 1 or more."""
        whole = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (failures - 1))
        return whole * (1.0 - chance() / 2.0)


NO_RETRY = Retry(attempts=1)

Outcome = httpx2.Response | httpx2.TransportError


class Attempts:
    """The attempts at one call."""

    def __init__(self, retry: Retry, call: Call[object]) -> None:
        self._retry = retry
        self._again = call.repeats
        self._made = 0

    def pause_s(self, outcome: Outcome) -> float | None:
        """Seconds until the next attempt after this outcome; None when the outcome stands."""
        self._made += 1
        if self._made >= self._retry.attempts or self._again == "never":
            return None
        if isinstance(outcome, httpx2.TransportError):
            worth = self._again == "safe" or isinstance(outcome, _UNSENT)
            return self._retry.pause_s(self._made) if worth else None
        return self._pause_after(outcome)

    def _pause_after(self, answer: httpx2.Response) -> float | None:
        if not (answer.status_code == _TOO_MANY or (answer.status_code in _AWAY and self._again == "safe")):
            return None
        wanted = retry_after(answer)
        if wanted is None:
            return self._retry.pause_s(self._made)
        return wanted if wanted <= self._retry.longest_retry_after_s else None
