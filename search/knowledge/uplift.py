"""What retrieval is worth: the difference between proposals that were shown something and those that were not.

Who is shown is decided by dice (`search.knowledge.holdout`), so a difference of means is the effect and needs no model
of anything else. Everything here is arithmetic on counts, means and variances, which is what SQL hands over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

SHOWN_95 = 0.95
RETIRE_AT = 0.99
"""An item is looked at after every job, and there are hundreds: at 95 % chance alone would retire one in twenty. The
interval that must lie below 0 is therefore that of 99 %."""

MIN_EACH = 8
"""Proposals with and without an item before anything is said of it: with fewer, one lucky kernel is the mean."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A mean of `n` values and their variance (of the sample; 0 for fewer than two)."""

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0


@dataclass(frozen=True, slots=True)
class Arm:
    """Proposals of one kind. `gained` is in log-speedup over the parent, failures counting as nothing gained."""

    proposals: int = 0
    correct: int = 0
    gained: Sample = Sample()
    cost_usd: Sample = Sample()
    """Of those whose price is known."""


class Moments(Protocol):
    """An arm as SQL counts it: see `db.uplift.ArmRow`."""

    @property
    def proposals(self) -> int: ...
    @property
    def correct(self) -> int: ...
    @property
    def gained_n(self) -> int: ...
    @property
    def gained_mean(self) -> float: ...
    @property
    def gained_variance(self) -> float: ...
    @property
    def cost_n(self) -> int: ...
    @property
    def cost_mean(self) -> float: ...
    @property
    def cost_variance(self) -> float: ...


def arm_of(counted: Moments) -> Arm:
    """An arm from its counts and moments."""
    return Arm(
        proposals=counted.proposals,
        correct=counted.correct,
        gained=Sample(counted.gained_n, counted.gained_mean, counted.gained_variance),
        cost_usd=Sample(counted.cost_n, counted.cost_mean, counted.cost_variance),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """With minus without, and its interval; None where there is too little to say."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Lift:
    """What showing was worth: in the share of correct proposals, in log-speedup gained and in US dollars."""

    shown: Arm
    withheld: Arm
    correctness: Difference | None
    gained: Difference | None
    cost_usd: Difference | None


def lift(shown: Arm, withheld: Arm, level: float = SHOWN_95) -> Lift:
    """The lift with intervals of that level."""
    return Lift(
        shown,
        withheld,
        proportions(shown.correct, shown.proposals, withheld.correct, withheld.proposals, level),
        means(shown.gained, withheld.gained, level),
        means(shown.cost_usd, withheld.cost_usd, level),
    )


def harmful(shown: Arm, withheld: Arm) -> str | None:
    """Why an item is to be retired, in a sentence; None when it may stay."""
    if min(shown.proposals, withheld.proposals) < MIN_EACH:
        return None
    found = lift(shown, withheld, RETIRE_AT)
    for what, difference in (("log-speedup gained", found.gained), ("share of correct proposals", found.correctness)):
        if difference is not None and difference.high < 0:
            return (
                f"negative lift in {what}: {difference.estimate:+.3f} "
                f"({RETIRE_AT:.0%}: {difference.low:+.3f} to {difference.high:+.3f}) "
                f"in {shown.proposals} proposals with it and {withheld.proposals} without"
            )
    return None


def proportions(hits: int, of: int, other_hits: int, of_other: int, level: float = SHOWN_95) -> Difference | None:
    """The difference of two proportions with Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, 873).

    It keeps its level with few observations and at 0 and 100 %, where the textbook interval has no width.
    """
    if not of or not of_other:
        return None
    one, other = hits / of, other_hits / of_other
    low_one, high_one = _wilson(one, of, level)
    low_other, high_other = _wilson(other, of_other, level)
    estimate = one - other
    return Difference(
        estimate,
        estimate - math.hypot(one - low_one, high_other - other),
        estimate + math.hypot(high_one - one, other - low_other),
    )


def means(one: Sample, other: Sample, level: float = SHOWN_95) -> Difference | None:
    """The difference of two means with Welch's interval; None with fewer than two values on a side."""
    if min(one.n, other.n) < 2:
        return None
    estimate = one.mean - other.mean
    parts = (one.variance / one.n, other.variance / other.n)
    error = math.sqrt(sum(parts))
    if not error:
        return Difference(estimate, estimate, estimate)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (one.n - 1) + parts[1] ** 2 / (other.n - 1))
    reach = student_quantile((1 + level) / 2, freedom) * error
    return Difference(estimate, estimate - reach, estimate + reach)


def student_quantile(probability: float, freedom: float) -> float:
    """A quantile of Student's t by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5).

    Within 0.15 % of the tables from 5 degrees of freedom on at 97.5 %, and from 10 on at 99.5 %.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def _wilson(share: float, n: int, level: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - reach), min(1.0, centre + reach)
