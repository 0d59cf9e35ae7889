"""The effect of a change on speed: a difference of log-speedups with its 95 % interval, and how several are pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959964

LEAST_SD = 0.005
"""Of one effect: half a percent, assumed. An interval from one process says nothing of what differs between two."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A change in log-speedup: `log` with the bounds of its 95 % interval. exp(log) is the factor in speed."""

    log: float
    low: float
    high: float

    @property
    def sd(self) -> float:
        """Standard deviation of the estimate."""
        return max((self.high - self.low) / (2 * Z95), LEAST_SD)

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves no doubt, else 0."""
        return (self.low > 0) - (self.high < 0)


def effect_between(
    before: float, before_ci95: tuple[float, float] | None, after: float, after_ci95: tuple[float, float] | None
) -> Effect | None:
    """The effect of going from one speedup to another; None where one of them has no interval or is not positive."""
    if before_ci95 is None or after_ci95 is None or min(before, after, *before_ci95, *after_ci95) <= 0:
        return None
    sd = math.hypot(_log_sd(before_ci95), _log_sd(after_ci95))
    return _around(math.log(after / before), max(sd, LEAST_SD))


def pooled(effects: Sequence[Effect]) -> Effect | None:
    """One effect for many, by a random-effects model: kernels differ, so the spread between them counts as well.

    DerSimonian and Laird, Controlled Clinical Trials 7 (1986), 177-188. None for none.
    """
    if not effects:
        return None
    weights = [1 / effect.sd**2 for effect in effects]
    fixed = _weighted_mean(effects, weights)
    heterogeneity = sum(w * (e.log - fixed) ** 2 for w, e in zip(weights, effects, strict=True))
    scale = sum(weights) - sum(w * w for w in weights) / sum(weights)
    between = max(0.0, (heterogeneity - (len(effects) - 1)) / scale) if scale > 0 else 0.0
    weights = [1 / (effect.sd**2 + between) for effect in effects]
    return _around(_weighted_mean(effects, weights), math.sqrt(1 / sum(weights)))


def _weighted_mean(effects: Sequence[Effect], weights: Sequence[float]) -> float:
    return sum(w * e.log for w, e in zip(weights, effects, strict=True)) / sum(weights)


def _log_sd(ci95: tuple[float, float]) -> float:
    return math.log(ci95[1] / ci95[0]) / (2 * Z95)


def _around(log: float, sd: float) -> Effect:
    return Effect(log, log - Z95 * sd, log + Z95 * sd)
