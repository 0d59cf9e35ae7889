"""The levers of a policy, each with its switch, so that its worth can be measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Levers:
    """What a policy may use. A job has those that help; an ablation switches one off, or on."""

    repair: bool = True
    tune: bool = True
    crossover: bool = True
    port: bool = True
    """Kernels of this problem that were certified for another target are carried over before the seeds."""
    bandit: bool = False
    """Operators by Thompson sampling; off: by fixed weights. On recorded pools weights are ahead (docs/search.md)."""
    models: bool = True
    """Models by a bandit for half of the proposals; off: by turns. Simulated (benchmarks/model_bandit.py), 60 seeds: if
    one model is better 2 % faster at a budget of 100 (39 wins to 21), where one costs a fifth 7 % cheaper at 30, where
    they are alike no difference."""
    cells: bool = True
    """Representatives and quotas of cells; off: all accepted kernels compete as one crowd."""
    broaden: bool = True
    """Greedy until the search stagnates, then broad; off: a compromise between the two throughout."""


ALL = Levers()
