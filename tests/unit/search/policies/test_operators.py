"""The bandit over operators: what pays is taken, what costs is taken less, and nothing is given up for good."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from search.policies.moves import Moves
from search.policies.operators import LARGE_STEPS, mixed, thompson
from search.policies.stagnation import PATIENCE, patience, stagnant
from search.tree import Tree
from search.types import Failure, Node, Operator, State, StopRules, Verdict
from tests.unit.search.policies.landscapes import flying, node
from tests.unit.search.worlds import job_view

LEGAL = (Operator.REFINE, Operator.REWRITE, Operator.SEED)


def draws(tree: list[Node], legal: tuple[Operator, ...] = LEGAL, **how: Any) -> Counter[Operator]:
    job = job_view(8, models=("a",))
    found = (Moves(job_view(8, models=job.models, seed=seed), Tree(tree)) for seed in range(400))
    return Counter(thompson(now, legal, **how) for now in found)


def tries(operator: Operator, speedups: list[float], **changes: Any) -> list[Node]:
    return [node(n, operator, parents=("c0",), speedup=s, **changes) for n, s in enumerate(speedups, start=1)]


def test_before_the_first_try_small_steps_are_favoured_and_large_ones_not_excluded() -> None:
    found = draws([node(0)])
    assert found[Operator.REFINE] > found[Operator.REWRITE] > 0
    assert found[Operator.SEED] > 0


def test_what_has_paid_is_taken() -> None:
    gains = [1.2, 1.5, 1.9, 2.4, 3.0]
    assert draws([node(0), *tries(Operator.REWRITE, gains)])[Operator.REWRITE] > 300
    vain = [0.9] * 25
    assert draws([node(0), *tries(Operator.REFINE, vain)])[Operator.REFINE] < draws([node(0)])[Operator.REFINE] * 0.6


def test_the_same_gain_for_more_money_is_worth_less() -> None:
    def rewrites(dollars: str) -> int:
        cheap = tries(Operator.REFINE, [1.2, 0.9, 1.5, 0.9])
        dear = [
            node(n, Operator.REWRITE, parents=("c0",), speedup=s, cost_usd=Decimal(dollars), gpu_s=5.0)
            for n, s in enumerate([1.9, 0.9, 2.4, 0.9], start=5)
        ]
        return draws([node(0), *cheap, *dear])[Operator.REWRITE]

    assert rewrites("0.50") < rewrites("0.00") / 2


def test_what_is_in_flight_counts_as_a_try() -> None:
    busy = [flying(n, parents=("c0",)) for n in range(1, 6)]
    assert draws([node(0), *busy])[Operator.REFINE] < draws([node(0)])[Operator.REFINE]


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.CANCELLED, "verdict": None, "speedup": None},
        {"verdict": Verdict.INFRA_ERROR, "speedup": None},
        {"state": State.REJECTED, "verdict": None, "speedup": None, "failure": Failure.PROVIDER_ERROR},
    ],
)
def test_what_is_not_the_operators_fault_does_not_count(changes: dict[str, Any]) -> None:
    blameless = [node(n, Operator.REFINE, parents=("c0",), **changes) for n in range(1, 40)]
    found = draws([node(0), *blameless])
    assert found[Operator.REFINE] > found[Operator.REWRITE]


def test_a_stagnant_search_favours_large_steps() -> None:
    narrow, broad = draws([node(0)]), draws([node(0)], broad=True)
    assert sum(broad[op] for op in LARGE_STEPS) > 1.5 * sum(narrow[op] for op in LARGE_STEPS)


def test_fixed_weights_hold_and_an_operator_without_one_is_the_last_resort() -> None:
    weights = {Operator.REFINE: 3.0, Operator.REWRITE: 1.0}
    found = Counter(mixed(Moves(job_view(8, seed=seed), Tree([])), LEGAL, weights) for seed in range(400))
    assert found[Operator.REFINE] == pytest.approx(300, abs=40)
    assert found[Operator.SEED] == 0
    assert mixed(Moves(job_view(8), Tree([])), (Operator.SEED,), weights) == Operator.SEED


@pytest.mark.parametrize(("stop", "expected"), [(None, PATIENCE), (1, 1), (2, 1), (12, 6), (100, PATIENCE)])
def test_it_broadens_before_the_stop_rule_ends_it(stop: int | None, expected: int) -> None:
    job = job_view(20, stop=StopRules(stagnation=stop))
    assert patience(job) == expected
    vain = [node(0, speedup=2.0), *(node(n, speedup=1.0) for n in range(1, expected + 1))]
    assert stagnant(job, Tree(vain))
    assert not stagnant(job, Tree(vain[:-1]))
