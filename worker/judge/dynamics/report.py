"""What the training-dynamics check found: figures, curves, and one sentence that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker.judge.dynamics.statistics import LIMITS, Distance


@dataclass(frozen=True, slots=True)
class BiasFound:
    """The bias statistic, and what it means for the rows that the text hits most."""

    beta: float
    """The largest |beta| of a slice."""
    limit: float
    hits: int = 0
    """How often the text hits the row with the largest error, in one batch (embedding gradients)."""
    received: float = 1.0
    """The share of its gradient that this row receives."""
    error: float = 0.0
    """The relative error of its gradient."""
    honest_error: float = 0.0
    cause: str = ""
    """The number format whose running sums would give the same errors, when one does."""

    @property
    def passed(self) -> bool:
        """Whether the bias is within its limit."""
        return self.beta <= self.limit


@dataclass(frozen=True, slots=True)
class DynamicsReport:
    """One candidate trained in a seat, against honest variants of the reference."""

    seat: str
    workload: str
    steps: int
    null_runs: int
    tokens: int
    """Per batch."""
    parameters: int
    distances: tuple[Distance, ...]
    bias: BiasFound
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether it trains as honest variants do under every optimiser."""
        return self.bias.passed and all(found.passed for found in self.distances)

    @property
    def sentence(self) -> str:
        """Why, in one sentence."""
        if self.passed:
            worst = max(found.loss for found in self.distances)
            names = _listed([found.optimiser for found in self.distances])
            return (
                f"trains as {self.null_runs} honest variants do under {names}: "
                f"in {self.steps} steps its loss stays within {worst:.1f} standard deviations of theirs{self._again()}"
            )
        return f"{self._symptom()}: {self._effect()}"

    def to_json(self) -> dict[str, Any]:
        """For the report and the certificate: `sentence`, `runs` with their curves, and the figures."""
        return {
            "sentence": self.sentence,
            "passed": self.passed,
            "seat": self.seat,
            "workload": self.workload,
            "steps": self.steps,
            "null_runs": self.null_runs,
            "tokens_per_batch": self.tokens,
            "parameters": self.parameters,
            "gradient_bias": self.bias.beta,
            "gradient_bias_limit": self.bias.limit,
            "seconds": round(self.seconds, 1),
            "runs": [_run(found) for found in self.distances],
        }

    def _again(self) -> str:
        again = [found.optimiser for found in self.distances if found.first is not None]
        return f" (under {_listed(again)} at a second attempt)" if again else ""

    def _symptom(self) -> str:
        found, because = self.bias, ""
        if found.cause:
            because = f", because sums are kept in {found.cause}"
        if found.hits and found.received < 0.95:
            return f"rows hit {found.hits:,} times receive {found.received:.0%} of their gradient{because}"
        if found.hits and found.error > 4 * found.honest_error:
            return (
                f"rows hit {found.hits:,} times receive a gradient that is {found.error:.2%} off "
                f"(honest kernels: {found.honest_error:.2g}){because}"
            )
        if not found.passed:
            return f"its gradient is biased by {found.beta:.2%} (limit {found.limit:.2g}){because}"
        return "it does not train as honest variants do"

    def _effect(self) -> str:
        left = [found for found in self.distances if found.left_at is not None]
        if left:
            first = left[0]
            return f"loss under {first.optimiser} leaves the honest band at step {first.left_at}"
        drifted = [found for found in self.distances if found.drift > LIMITS["drift"]]
        if drifted:
            names = _listed([found.optimiser for found in drifted])
            times = max(found.drift for found in drifted)
            return f"under {names} rows end up to {times:,.0f} standard deviations from where honest kernels put them"
        if any(found.norm > LIMITS["norm"] for found in self.distances):
            return "the norm of the gradient leaves the honest band"
        return "no average over steps removes that"


def _run(found: Distance) -> dict[str, Any]:
    """One optimiser's curves; `worker.judge.certificate` draws them."""
    return {
        "name": found.optimiser,
        "steps": list(range(1, len(found.losses) + 1)),
        "candidate": list(found.losses),
        "null_low": list(found.null_low),
        "null_high": list(found.null_high),
        "passed": found.passed,
        "first_of_limit": None if found.first is None else found.first.of_limit,
        "loss_sd": found.loss,
        "drift_sd": found.drift,
        "gradient_norm_sd": found.norm,
    }


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
