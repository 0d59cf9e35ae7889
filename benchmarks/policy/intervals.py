"""Medians with bootstrap intervals, and win rates of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

RESAMPLES = 2000


def median_interval(values: Mapping[str, Sequence[float]]) -> tuple[float, float, float]:
    """Median over everything, with a 95 % percentile bootstrap interval (Efron, 1979).

    `values`: by problem, one number a seed. Seeds are resampled within their problems: the problems are the ones that
    we have, not a sample of all there are.
    """
    dice = np.random.default_rng(0)
    groups = [np.asarray(group) for group in values.values()]
    drawn = [group[dice.integers(0, len(group), (RESAMPLES, len(group)))] for group in groups]
    medians = np.median(np.concatenate(drawn, axis=1), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(np.median(np.concatenate(groups))), float(low), float(high)


def win_rate(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> tuple[float, float, float]:
    """Share of (problem, seed) pairs in which ours is greater, ties counting half, with a 95 % bootstrap interval."""
    wins = {
        problem: [
            0.5 + 0.5 * float(np.sign(round(mine - other, 9)))
            for mine, other in zip(ours[problem], theirs[problem], strict=True)
        ]
        for problem in ours
    }
    dice = np.random.default_rng(0)
    groups = [np.asarray(group) for group in wins.values()]
    drawn = [group[dice.integers(0, len(group), (RESAMPLES, len(group)))] for group in groups]
    means = np.concatenate(drawn, axis=1).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(np.concatenate(groups).mean()), float(low), float(high)


def mean_difference(
    ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]
) -> tuple[float, float, float]:
    """Mean of ours less theirs over (problem, seed) pairs, with a 95 % bootstrap interval."""
    groups = [np.asarray(ours[problem]) - np.asarray(theirs[problem]) for problem in ours]
    dice = np.random.default_rng(0)
    drawn = [group[dice.integers(0, len(group), (RESAMPLES, len(group)))] for group in groups]
    means = np.concatenate(drawn, axis=1).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(np.concatenate(groups).mean()), float(low), float(high)
