"""A model of a tuning space for few measurements: an additive Gaussian process, and where it expects an improvement.

Tunables mostly act apart from one another, and sometimes in pairs: the covariance of two configurations is a sum over
tunables and over pairs of them of how alike their values are (first- and second-order additive kernel: Duvenaud,
Nickisch and Rasmussen, "Additive Gaussian processes", NIPS 2011). The next configuration is that of the greatest
expected improvement (Jones, Schonlau and Welch, "Efficient global optimization", 1998). Values are compared by their
place in the declared list. numpy is imported when it is needed: 0.1 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PAIRS = 0.5
"""Share of the variance that pairs of tunables explain beyond single ones."""

REACH = 0.6
"""How far a value's likeness reaches: a neighbour in a list of three is exp(-(0.5 / 0.6) ** 2) = 0.5 alike."""

NOISE = 0.02
"""Share of the variance of the measurements that is noise."""


def expected_improvements(
    tried: Sequence[Sequence[float]], values: Sequence[float], free: Sequence[Sequence[float]]
) -> list[float]:
    """For each free configuration, by how much it is expected to exceed the best value.

    A configuration is the places of its values in their lists, each from 0 to 1. At least two values, not all alike,
    else all expectations are equal.
    """
    import numpy as np

    seen, left = np.asarray(tried, dtype=float), np.asarray(free, dtype=float)
    found = np.asarray(values, dtype=float)
    spread = float(found.std())
    if spread == 0:
        return [0.0] * len(free)
    scaled = (found - found.mean()) / spread
    among = _covariance(seen, seen) + NOISE * np.eye(len(seen))
    across = _covariance(left, seen)
    solved = np.linalg.solve(among, np.column_stack([scaled, across.T]))
    mean = across @ solved[:, 0]
    variance = np.maximum(1.0 - np.einsum("ij,ji->i", across, solved[:, 1:]), 1e-9)
    sigma = np.sqrt(variance)
    ahead = mean - scaled.max()
    z = ahead / sigma
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    improvements: list[float] = (ahead * below + sigma * density).tolist()
    return improvements


def _covariance(one: Floats, other: Floats) -> Floats:
    """Of each row of `one` with each of `other`; 1 for equal ones."""
    import numpy as np

    apart = (one[:, None, :] - other[None, :, :]) / REACH
    alike = np.exp(-(apart**2))
    singles: Floats = alike.mean(axis=2)
    count = one.shape[1]
    if count < 2:
        return singles
    pairs = (alike.sum(axis=2) ** 2 - (alike**2).sum(axis=2)) / (count * (count - 1))
    found: Floats = (1 - PAIRS) * singles + PAIRS * pairs
    return found
