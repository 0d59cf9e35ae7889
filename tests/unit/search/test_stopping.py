"""Caps on what language models cost: a job stops at them, and plans no call that would go beyond."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

from search.advance import advance
from search.types import Budget, Failure, Node, Operator, ProposerKind, State, StopReason, Verdict
from tests.unit.search.worlds import World, job_view


@dataclass
class Counting(World):
    """A world that counts a call and 100 tokens for each answer, as the ledger does."""

    def _answered(self, node: Node) -> Node:
        self.job = replace(self.job, llm_calls=self.job.llm_calls + 1, llm_tokens=self.job.llm_tokens + 100)
        return super()._answered(node)


def played(slots: int, seed: int, **caps: Any) -> tuple[Counting, str]:
    job = job_view(40, models=("a", "b"), slots=slots, budget=Budget(40, **caps))
    world = Counting(job, random.Random(seed), provider_down=0.0)
    return world, world.run()


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_calls_are_never_overshot(slots: int, seed: int) -> None:
    world, reason = played(slots, seed, calls=7)
    assert (reason, world.job.llm_calls) == (StopReason.BUDGET_CALLS, 7)


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_overshot_by_no_more_than_the_calls_in_flight(slots: int, seed: int) -> None:
    world, reason = played(slots, seed, tokens=700)
    assert reason == StopReason.BUDGET_TOKENS
    assert 700 <= world.job.llm_tokens < 700 + slots * 100


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_money_is_overshot_by_no_more_than_the_calls_in_flight(slots: int, seed: int) -> None:
    world, reason = played(slots, seed, usd=Decimal("0.07"))
    assert reason == StopReason.BUDGET_USD
    assert Decimal("0.07") <= world.job.cost_usd < Decimal("0.07") + slots * Decimal("0.01")


def test_caps_on_models_do_not_bind_a_job_without_them() -> None:
    job = job_view(4, budget=Budget(4, calls=1, tokens=1, usd=Decimal(0)), llm_calls=5, llm_tokens=5)
    assert advance(job, []).stop_reason is None


def test_a_key_that_is_used_up_ends_the_job_when_nothing_is_in_flight() -> None:
    job = job_view(4, key_over="usd")
    judging = Node("c0", 0, Operator.SEED, ProposerKind.BUILTIN, state=State.EVALUATING)
    assert advance(job, [judging]).expansions == ()
    assert advance(job, [judging]).stop_reason is None
    judged = replace(judging, state=State.EVALUATED, verdict=Verdict.OK, speedup=1.0)
    assert advance(job, [judged]).stop_reason == StopReason.BUDGET_KEY


def test_a_proposal_that_a_cap_forbade_takes_no_place() -> None:
    refused = Node("c0", 0, Operator.SEED, ProposerKind.LLM, state=State.REJECTED, failure=Failure.BUDGET)
    assert refused.free
