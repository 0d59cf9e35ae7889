"""The one layer of retries around a provider: jittered, bounded by a deadline, and patient where it is asked to be.

litellm and the clients under it are told not to retry, so that waits are counted once. Clock, sleep and dice are given.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

Answer = TypeVar("Answer")

log = structlog.get_logger(__name__)

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
SHORTEST_TRY_S = 1.0
"""With less time than this left before the deadline another try is not worth its price."""


class ProviderFailure(Exception):
    """A provider did not answer. The message says what it said; `retryable` whether asking again may help."""

    def __init__(self, message: str, *, retryable: bool, status: int | None = None, retry_after_s: float | None = None):
        super().__init__(message)
        self.retryable = retryable
        self.status = status
        self.retry_after_s = retry_after_s
        self.attempts = 1


@dataclass(frozen=True, slots=True)
class Retries:
    """How long and how often to try. Times are in seconds of the given clock, which need not start at zero."""

    deadline_s: float
    max_attempts: int
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    dice: random.Random

    def run(self, attempt: Callable[[float], Answer]) -> tuple[Answer, int]:
        """Call `attempt(seconds left)` until it answers; the answer and the number of attempts.

        Raises the last ProviderFailure when it is not retryable, or when no further try fits in the deadline.
        """
        end = self.clock() + self.deadline_s
        number = 0
        while True:
            number += 1
            try:
                return attempt(max(end - self.clock(), SHORTEST_TRY_S)), number
            except ProviderFailure as failure:
                failure.attempts = number
                delay_s = self._delay_s(failure, number)
                out_of_time = self.clock() + delay_s + SHORTEST_TRY_S > end
                if not failure.retryable or number >= self.max_attempts or out_of_time:
                    raise
                log.info("llm.retry", attempt=number, status=failure.status, delay_s=round(delay_s, 2))
            self.sleep(delay_s)

    def _delay_s(self, failure: ProviderFailure, number: int) -> float:
        """What the provider asked for, plus up to a tenth so that workers do not return in step; or our guess."""
        if failure.retry_after_s is not None:
            return failure.retry_after_s * (1.0 + 0.1 * self.dice.random())
        ceiling = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (number - 1))
        return ceiling * (0.5 + 0.5 * self.dice.random())
