"""Is this run one of the honest ones? Distances from a null distribution of runs that differ by reduction order alone.

Per optimiser, with mean and spread (sd) over the null runs, each floored where honest runs agree to the last bit:

    loss     max over steps t of |L_c(t) - mean L_0(t)| / sd_0(t)
    drift    max over the hottest rows r of ||W_c - mean W_0||_r / sd_0,r, both after the last step
    norm     max over steps of |ln(n_c(t) / mean n_0(t))| / sd of ln n_0(t)

sd_0 is pooled over seven neighbouring steps (and never falls for the loss; is never below the mean of all steps for the
norm): six runs say little about the spread at one step. And in the first optimiser's run, at its first, middle and
last step, against fp64:

    bias     max over slices g of |sum <e, y>_g / sum <y, y>_g|: noise averages out of it, lost gradients do not
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.judge.dynamics.training import Run

LIMITS = {"loss": 8.0, "drift": 8.0, "norm": 20.0}
"""In standard deviations of the null. Leave-one-out over 20 honest variants, each ten times against six of the others
(benchmarks/dynamics_false_alarms.py, embedding gradient, 4 optimisers, 800 judgements a problem type): none fails. The
largest distances in bf16 were 6.1, 2.0 and 8.4, in fp32 0.2, 1.2 and 0.8. Sums kept in bf16 lie at 44 (loss under SGD)
and some thousands (drift); a limit of 5 on all three would turn away 2 to 8 % of honest bf16 kernels."""
_NEAR = 5.0
"""In limits. The farthest of 200 judgements of honest softmaxes against six others lay at 3.2 of the loss's. One NaN,
or one lost gradient in a whole run, lies at thousands: so far away is no ill luck, and must not pass by being rare."""
_LOSS_FLOOR, _FLOOR = 2.0**-20, 2.0**-17
"""Relative. A loss is read no finer than 16 units of fp32. Rows and norms may be off by 128: what approximate functions
(a reciprocal root of 22 bits) add up to, and a tenth of what the judge's numerics let pass."""
_NEIGHBOURS = 3
BIAS_FACTOR, _LEAST_BIAS = 8.0, 2.0**-13
"""A bias of 1e-4 is a learning rate that is off by a hundredth of a percent."""


@dataclass(frozen=True, slots=True)
class Distance:
    """One optimiser: how far a run lies from the null."""

    optimiser: str
    loss: float
    drift: float
    norm: float
    left_at: int | None
    """The first step (from 1) whose loss is outside the band."""
    null_low: tuple[float, ...]
    null_high: tuple[float, ...]
    """The band of honest losses, per step."""
    losses: tuple[float, ...]
    first: Distance | None = None
    """What came of the first attempt, where this is the second, with other text, weights and honest runs."""

    @property
    def passed(self) -> bool:
        """Whether every statistic is within its limit."""
        return self.of_limit <= 1.0

    @property
    def near(self) -> bool:
        """Whether it is no farther from the null than an honest run may be by ill luck."""
        return self.of_limit <= _NEAR

    @property
    def of_limit(self) -> float:
        """The largest of the three, in terms of its limit."""
        return max(self.loss / LIMITS["loss"], self.drift / LIMITS["drift"], self.norm / LIMITS["norm"])


def distance(optimiser: str, run: Run, null: Sequence[Run], start_rows: torch.Tensor) -> Distance:
    """`run` against the null runs. A run that stops early or is not finite is infinitely far away.

    `start_rows` are the hot rows before training, (rows, width).
    """
    losses = torch.tensor([each.losses for each in null], dtype=torch.float64)
    mean, spread = losses.mean(0), _spread(losses)
    band = torch.cummax(torch.maximum(_pooled(spread, _NEIGHBOURS), _LOSS_FLOOR * mean.abs()), 0).values
    apart = _apart(run.losses, mean, band)
    outside = (apart > LIMITS["loss"]).nonzero()
    norms = torch.tensor([each.norms for each in null], dtype=torch.float64).log()
    logs = [math.log(norm) if 0 < norm < math.inf else math.inf for norm in run.norms]
    norm_spread = _spread(norms)
    local, overall = _pooled(norm_spread, _NEIGHBOURS), _pooled(norm_spread, len(mean))
    norm_band = torch.maximum(local, overall).clamp_min(_FLOOR)
    return Distance(
        optimiser,
        loss=float(apart.max()),
        drift=_drift(run, null, start_rows),
        norm=float(_apart(logs, norms.mean(0), norm_band).max()),
        left_at=int(outside[0]) + 1 if len(outside) else None,
        null_low=tuple((mean - LIMITS["loss"] * band).tolist()),
        null_high=tuple((mean + LIMITS["loss"] * band).tolist()),
        losses=tuple(run.losses),
    )


def _spread(samples: torch.Tensor) -> torch.Tensor:
    """Standard deviation over the first dimension, for predicting one more sample of so few."""
    return samples.std(0) * math.sqrt(1 + 1 / len(samples))


def _pooled(spread: torch.Tensor, reach: int) -> torch.Tensor:
    """Root mean square over the steps within `reach` of each."""
    return torch.stack(
        [spread[max(0, step - reach) : step + reach + 1].square().mean().sqrt() for step in range(len(spread))]
    )


def _apart(values: Sequence[float], mean: torch.Tensor, band: torch.Tensor) -> torch.Tensor:
    apart = (torch.tensor(values, dtype=torch.float64) - mean).abs() / band
    return torch.nan_to_num(apart, nan=math.inf, posinf=math.inf)


def _drift(run: Run, null: Sequence[Run], start_rows: torch.Tensor) -> float:
    rows = torch.stack([each.hot_rows for each in null]).double()
    mean = rows.mean(0)
    spread = (rows - mean).norm(dim=-1).square().sum(0).div(len(null) - 1).sqrt() * math.sqrt(1 + 1 / len(null))
    floor = _FLOOR * torch.maximum(mean.norm(dim=-1), (mean - start_rows.double()).norm(dim=-1))
    apart = (run.hot_rows.double() - mean).norm(dim=-1) / torch.maximum(spread, floor).clamp_min(1e-30)
    return float(torch.nan_to_num(apart, nan=math.inf, posinf=math.inf).max())


@dataclass(slots=True)
class Bias:
    """Sums of <e, y>, <y, y> and <e, e> over sampled steps, per slice."""

    ey: torch.Tensor
    yy: torch.Tensor
    ee: torch.Tensor

    @classmethod
    def of(cls, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Bias:
        """From (output, fp64 truth) of each sampled step, both (slices, elements)."""
        errors = [(output.double() - truth, truth) for output, truth in pairs]
        return cls(
            ey=torch.stack([(error * truth).sum(1) for error, truth in errors]).sum(0),
            yy=torch.stack([truth.square().sum(1) for _error, truth in errors]).sum(0),
            ee=torch.stack([error.square().sum(1) for error, _truth in errors]).sum(0),
        )

    @property
    def per_slice(self) -> torch.Tensor:
        """beta: -0.62 where a slice receives 38 % of what it should. Slices that are next to nothing count as 0."""
        known = self.yy > 1e-6 * self.yy.max()
        return torch.where(known, self.ey / self.yy.clamp_min(1e-300), 0.0)

    @property
    def error_per_slice(self) -> torch.Tensor:
        """Relative root mean square error."""
        known = self.yy > 1e-6 * self.yy.max()
        return torch.where(known, (self.ee / self.yy.clamp_min(1e-300)).sqrt(), 0.0)

    @property
    def worst(self) -> float:
        """The largest |beta|; infinite where something is not finite."""
        return float(torch.nan_to_num(self.per_slice.abs(), nan=math.inf, posinf=math.inf).max())


def bias_limit(honest: Sequence[Bias], rounding: float) -> float:
    """What a kernel may be biased by: eight times the worst honest variant, and never less than its type's rounding."""
    return max(BIAS_FACTOR * max(each.worst for each in honest), rounding, _LEAST_BIAS)
