"""What a job may cost: ranges that hold for simulated jobs, caps that bind, and prices that stay unknown."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from search.estimate import ANSWER_TOKENS, NOTHING, Estimate, Grounds, ModelHistory, Range, estimate
from search.price_list import Price
from search.types import Budget, JobView, ProposerKind
from tests.unit.search.worlds import World, job_view

PRICED = {"a": Price(Decimal(1), Decimal(10), "litellm"), "b": Price(Decimal(3), Decimal(15), "override")}
HISTORY = ModelHistory(20, Range(1_000, 2_000), Range(500, 1_000), 20, Range(0.01, 0.02))


def job(candidates: int = 20, models: tuple[str, ...] = ("a", "b"), **caps: Any) -> JobView:
    return job_view(candidates, models=models, budget=Budget(candidates, **caps))


def estimated(asked: JobView, diagnosis_model: str | None = None, **grounds: Any) -> Estimate:
    return estimate(asked, diagnosis_model, Grounds(**{"reference_chars": 600, "prices": PRICED, **grounds}))


@pytest.mark.parametrize("candidates", [1, 4, 20, 60])
def test_the_calls_of_simulated_jobs_lie_in_the_range(candidates: int) -> None:
    found = estimated(job(candidates)).calls
    for seed in range(6):
        world = World(job(candidates), random.Random(seed), provider_down=0.0)
        world.run()
        calls = sum(node.proposer == ProposerKind.LLM for node in world.tree)
        assert found.low * 0.75 <= calls <= found.high + 1, (seed, calls, found)


def test_a_job_without_models_costs_no_dollars_and_its_device_time() -> None:
    found = estimated(job(10, models=()), evaluation_s=Range(1.5, 4.0))
    assert (found.calls, found.usd, found.unknown_prices) == (NOTHING, NOTHING, ())
    assert found.gpu_s == Range(15.0, 40.0)
    assert estimated(job(10, models=())).gpu_s is None


def test_an_unknown_price_makes_the_dollars_unknown_and_is_named() -> None:
    found = estimated(job(models=("a", "mystery"), usd=Decimal(5)))
    assert (found.usd, found.unknown_prices) == (None, ("mystery",))
    assert any("no cap in USD can hold for mystery" in note for note in found.notes)
    assert estimated(job(), "mystery").usd is None, "the judge model's too"


def test_listed_prices_give_dollars_from_lean_prompts_to_rich_ones() -> None:
    found = estimated(job(20, models=("a",)))
    assert found.usd is not None
    assert found.usd.low == pytest.approx((found.tokens_in.low + 10 * found.tokens_out.low) / 1e6)
    assert found.usd.high == pytest.approx((found.tokens_in.high + 10 * found.tokens_out.high) / 1e6)
    assert found.tokens_out == Range(found.calls.low * ANSWER_TOKENS[0], found.calls.high * ANSWER_TOKENS[1])


def test_what_earlier_calls_took_comes_before_what_is_assumed() -> None:
    found = estimated(job(20, models=("a",)), histories={"a": HISTORY}, prices={})
    assert found.usd == Range(found.calls.low * 0.01, found.calls.high * 0.02)
    assert found.tokens_in == Range(found.calls.low * 1_000, found.calls.high * 2_000)
    assert found.notes == ()
    few = {"a": replace(HISTORY, calls=4, priced_calls=4)}
    assert estimated(job(20, models=("a",)), histories=few, prices={}).usd is None
    assert "sizes of calls are assumed for a" in estimated(job(20, models=("a",)), histories=few).notes[0]


def test_caps_bound_the_estimate() -> None:
    found = estimated(job(50, calls=6, tokens=9_000, usd=Decimal("0.05"), gpu_s=30.0), evaluation_s=Range(1.0, 2.0))
    assert (found.calls.high, found.tokens_in.high, found.tokens_out.high) == (6, 9_000, 9_000)
    assert found.usd is not None and found.usd.high == 0.05
    assert found.gpu_s == Range(30.0, 30.0)


def test_a_judge_model_adds_calls() -> None:
    alone, judged = estimated(job(20)), estimated(job(20), "a")
    assert judged.calls.low > alone.calls.low and judged.calls.high > alone.calls.high
    assert judged.usd is not None and alone.usd is not None and judged.usd.high > alone.usd.high


def test_a_cap_on_calls_bounds_proposals_and_diagnoses_together() -> None:
    free, capped = estimated(job(40), "a"), estimated(job(40, calls=6), "a")
    assert capped.calls == Range(6, 6)
    assert capped.tokens_out.high == pytest.approx(free.tokens_out.high * 6 / free.calls.high)
