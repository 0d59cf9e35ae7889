"""Whether a module begins with what the reference's constructor makes, where the two may draw in another order.

What a constructor makes of several seeds says what a parameter is: the same each time (ones, a table of angles), or
drawn. The former is compared element by element, the latter by mean and standard deviation, which may differ by as much
as chance explains, about six standard errors: no normal, uniform or truncated draw was doubted in thousands. Of a few
elements that are mostly zeros, one in twenty is: it is worth a reservation, no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from worker.judge.numerics.twin import same_bits

DRAWS = 4
"""As many models of the reference, each of another seed: of a single element one would tell nothing."""
_ERRORS = 6.0
_FEW = 30
"""Of fewer elements in all draws the spread itself is a guess: t of 3 degrees of freedom is 50 once in 50,000 times."""
_TOGETHER = 3.0
"""Standard errors by which the draws' means differ, from which their elements are not independent."""
_OF_MEANS = 30.0
"""Standard deviations of the draws' own means that another may be off by, then: there are only `DRAWS`."""
_FEWEST_WIDTH = 16
"""Elements from which a spread that is too small is told: two of them are close by chance."""
_SLACK = 0.01
"""Of the spread: a mean or a spread that differs by less is the same to whoever trains."""
_TABLE = 0.01
"""Of a table's size: angles of positions far out are off by 1e-3 in float32."""


def alike(found: torch.Tensor, draws: Sequence[torch.Tensor]) -> bool:
    """Whether `found` may begin where the reference's does, which is `draws[0]` with the same seed and the others with
    others."""
    first, *others = draws
    if same_bits(found, first):
        return True
    values, wanted = _real(found), [_real(each) for each in draws]
    if not torch.equal(values.isfinite(), wanted[0].isfinite()):
        return False
    values, wanted = _finite(values), [_finite(each) for each in wanted]
    if not values.numel():
        return True
    if all(same_bits(first, other) for other in others):
        return _as_computed(values, wanted[0], first.dtype)
    return _as_drawn(values, wanted)


def _as_computed(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> bool:
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.equal(found, wanted)
    if bool((wanted == wanted[0]).all()):
        return torch.allclose(found, wanted, rtol=4 * torch.finfo(dtype).eps, atol=0.0)
    return float((found - wanted).norm()) <= _TABLE * float(wanted.norm())


def _as_drawn(found: torch.Tensor, draws: Sequence[torch.Tensor]) -> bool:
    pooled, means = torch.cat(list(draws)), torch.stack([each.mean() for each in draws])
    count, every, spread = found.numel(), pooled.numel(), float(pooled.std())
    room = _ERRORS * (1 + _FEW / every) * spread * math.sqrt(1 / count + 1 / every)
    if float(means.std()) > _TOGETHER * spread / math.sqrt(count):  # elements go together: one number for a whole row
        room = max(room, _OF_MEANS * float(means.std()))
    if not abs(float(found.mean()) - float(pooled.mean())) <= room + _SLACK * spread:
        return False
    if count < 2:
        return True
    # Of long tails, which a fourth moment tells of, the spread varies more.
    tails = max(3.0, float(((pooled - pooled.mean()) / spread).pow(4).mean())) if spread else 3.0
    factor = math.exp(_ERRORS * math.sqrt((tails - 1) / 4 * (1 / count + 1 / every)) + _SLACK)
    widths = [spread, *(float(each.std()) for each in draws)]
    width = float(found.std())
    return width <= factor * max(widths) and (count < _FEWEST_WIDTH or width + _SLACK * spread >= min(widths) / factor)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).to(torch.float64).reshape(-1)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values[values.isfinite()]
