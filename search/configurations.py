"""Configurations of a kernel that were measured quickly: which of them to judge, and which to use for which workload.

A quick measurement ranks; it is no verdict. What it found is kept (`Measured`) and serves three ends: the tuner goes on
from it, the best configuration becomes a candidate, and where workloads want different ones a dispatch table does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search.proposing import Trial
from search.types import Params

WORTHWHILE = 1.01
"""A configuration is judged when it was measured 1 % faster than the best that was: below that it is timing noise."""

DISPATCH_GAIN = 1.02
"""A dispatch table must promise 2 % over the best single configuration: each of its rows is the luckiest of many."""

Signature = tuple[tuple[str | int, ...], ...]
"""What tells workloads apart at run time: dtype and sizes of each tensor, (("float32", 1024, 4096), ...)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One configuration. `ratios`: how much faster than the kernel as it is, by workload; empty where it failed."""

    params: Params
    ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float | None:
        """The geometric mean of the ratios, as a judge's speedup is made; None where it failed."""
        if not self.ratios or min(self.ratios.values()) <= 0:
            return None
        return math.exp(sum(map(math.log, self.ratios.values())) / len(self.ratios))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Which configuration for which inputs; `fallback`, the best overall, for all others. `gain` is what is promised
    over the fallback, as the geometric mean over the workloads."""

    choices: Mapping[Signature, Params]
    fallback: Params
    gain: float


def as_trials(measured: Sequence[Measured]) -> list[Trial]:
    """What the tuner (`search.tuning.suggest`) goes on from."""
    return [Trial(found.params, found.gain) for found in measured]


def key_of(params: Params) -> str:
    """A configuration as text: equal for equal ones, and True is not 1."""
    return json.dumps(dict(params), sort_keys=True)


def best(measured: Sequence[Measured]) -> Measured | None:
    """The fastest overall, the first of equals; None where nothing worked."""
    return max((found for found in measured if found.gain), key=lambda found: found.gain or 0.0, default=None)


def worth_judging(measured: Sequence[Measured], judged: Sequence[Params]) -> Measured | None:
    """The fastest configuration, unless one that was judged (the kernel's own among them) is as good."""
    known = {key_of(params) for params in judged}
    fastest = best(measured)
    if fastest is None or key_of(fastest.params) in known:
        return None
    bar = max([1.0, *(found.gain or 0.0 for found in measured if key_of(found.params) in known)])
    return fastest if (fastest.gain or 0.0) > bar * WORTHWHILE else None


def plan_dispatch(
    measured: Sequence[Measured], own: Params, signatures: Mapping[str, Sequence[Sequence[str | int]]]
) -> Dispatch | None:
    """The best configuration for each workload, where that promises enough over the best for all; else None.

    `own` is the configuration that the kernel has now: its ratios are 1 by definition. Workloads of equal signatures
    cannot be told apart, so they are decided together.
    """
    table = [Measured(own, dict.fromkeys(signatures, 1.0)), *(found for found in measured if found.gain)]
    fallback = best(table)
    groups: dict[Signature, list[str]] = {}
    for workload, tensors in signatures.items():
        groups.setdefault(tuple(tuple(tensor) for tensor in tensors), []).append(workload)
    if fallback is None or len(groups) < 2:
        return None
    complete = [found for found in table if found.ratios.keys() >= signatures.keys()]
    choices: dict[Signature, Params] = {}
    gains: list[float] = []
    for signature, workloads in groups.items():
        winner = max(complete, key=lambda found: _product(found, workloads), default=fallback)
        better = _product(winner, workloads) / _product(fallback, workloads)
        if better > WORTHWHILE ** len(workloads):
            choices[signature] = winner.params
            gains.append(better)
    gain = math.prod(gains) ** (1 / len(signatures))
    return Dispatch(choices, fallback.params, gain) if gain >= DISPATCH_GAIN else None


def _product(found: Measured, workloads: Sequence[str]) -> float:
    return math.prod(found.ratios.get(workload, 1.0) for workload in workloads)
