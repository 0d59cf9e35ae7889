"""The main loop's promises, in simulated worlds: it ends, budgets hold, slots are kept full and never overfull."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.advance import advance
from search.stopping import MAX_FREE_REJECTIONS_PER_CANDIDATE
from search.types import (
    IN_FLIGHT,
    Budget,
    Decision,
    Failure,
    Node,
    Operator,
    ProposerKind,
    State,
    StopReason,
    StopRules,
    Verdict,
)
from tests.unit.search.worlds import MAX_MOVES, World, job_view

worlds = st.builds(
    lambda seed, candidates, slots, models, builtin, stop, rates: World(
        job=job_view(candidates, slots=slots, models=models, builtin=builtin, seed=seed % 7, stop=stop),
        dice=random.Random(seed),
        menu=rates[0],
        space=rates[1],
        failing=rates[2],
        duplicate=rates[3],
        provider_down=rates[4],
    ),
    seed=st.integers(0, 2**32),
    candidates=st.integers(1, 25),
    slots=st.integers(1, 6),
    models=st.sampled_from([(), ("a",), ("a", "b"), ("a", "b", "c")]),
    builtin=st.booleans(),
    stop=st.builds(StopRules, st.none() | st.floats(1.0, 4.0), st.none() | st.integers(1, 12)),
    rates=st.tuples(
        st.integers(0, 8),
        st.integers(0, 15),
        st.sampled_from([0.0, 0.3, 1.0]),
        st.sampled_from([0.0, 0.2, 1.0]),
        st.sampled_from([0.0, 0.2, 1.0]),
    ),
)


@settings(max_examples=150, deadline=None)
@given(worlds)
def test_every_job_ends_within_its_budget_and_its_slots(world: World) -> None:
    for _ in range(MAX_MOVES):
        decision = world.step()
        in_flight = sum(node.state in IN_FLIGHT for node in world.tree)
        assert in_flight <= world.job.slots
        assert sum(not node.free for node in world.tree) <= world.job.budget.candidates
        if decision.stop_reason is not None:
            assert decision.expansions == ()
            break
        world.something_happens()
    else:
        raise AssertionError("the job never ended")
    free = sum(node.free for node in world.tree)
    bound = MAX_FREE_REJECTIONS_PER_CANDIDATE * world.job.budget.candidates + world.job.slots
    assert free <= bound


@settings(max_examples=100, deadline=None)
@given(worlds, st.integers(0, 60))
def test_a_second_look_at_the_same_rows_decides_nothing_new(world: World, moves: int) -> None:
    for _ in range(moves):
        if world.step().stop_reason is not None:
            return
        assert advance(world.job, world.tree).expansions == ()
        world.something_happens()
    decision = advance(world.job, world.tree)
    assert advance(world.job, list(reversed(world.tree))) == decision


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_parents_are_judged_nodes_of_the_same_tree(world: World) -> None:
    world.run()
    for node in world.tree:
        for parent in node.parents:
            assert world.nodes[parent].ordinal < node.ordinal
            assert world.nodes[parent].state == State.EVALUATED


def test_slots_are_filled_at_once_and_refilled_one_by_one() -> None:
    world = World(job_view(20, slots=3), random.Random(1), failing=0.0, duplicate=0.0)
    assert len(world.step().expansions) == 3
    while all(node.state in IN_FLIGHT for node in world.tree):
        world.something_happens()
    assert len(world.step().expansions) == 1


def ok(ordinal: int, speedup: float, **changes: object) -> Node:
    node = Node(
        f"cand_{ordinal}", ordinal, Operator.SEED, ProposerKind.BUILTIN, None, (), State.EVALUATED, Verdict.OK, speedup
    )
    return replace(node, **changes)  # type: ignore[arg-type]


FLYING = Node("cand_9", 9, Operator.SEED, ProposerKind.BUILTIN, state=State.EVALUATING)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cancel_requested": True}, StopReason.CANCELLED),
        ({"stop": StopRules(target_speedup=2.0)}, StopReason.TARGET_REACHED),
        ({"budget": Budget(20, wall_s=60.0), "elapsed_s": 60.0}, StopReason.BUDGET_WALL),
        ({"budget": Budget(20, gpu_s=30.0), "gpu_s": 31.0}, StopReason.BUDGET_GPU),
    ],
)
def test_some_reasons_end_a_job_with_work_in_flight(changes: dict[str, object], reason: StopReason) -> None:
    assert advance(job_view(**changes), [ok(0, 2.5), FLYING]) == Decision(stop_reason=reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"candidates": 2}, StopReason.BUDGET_CANDIDATES),
        (
            {"models": ("a",), "budget": Budget(20, usd=Decimal("1")), "cost_usd": Decimal("1.01")},
            StopReason.BUDGET_USD,
        ),
        ({"stop": StopRules(stagnation=1)}, StopReason.STAGNATED),
    ],
)
def test_other_reasons_wait_for_what_is_paid_for(changes: dict[str, object], reason: StopReason) -> None:
    job = job_view(**changes)  # type: ignore[arg-type]
    assert advance(job, [ok(0, 1.5), ok(1, 1.2), FLYING]) == Decision()
    assert advance(job, [ok(0, 1.5), ok(1, 1.2)]) == Decision(stop_reason=reason)


def test_money_does_not_bind_a_job_without_models() -> None:
    job = job_view(budget=Budget(20, usd=Decimal(0)))
    assert advance(job, []).expansions


def test_an_infrastructure_failure_is_no_sign_of_stagnation() -> None:
    job = job_view(stop=StopRules(stagnation=2))
    broken = replace(ok(1, 0.0), verdict=Verdict.INFRA_ERROR, speedup=None)
    assert advance(job, [ok(0, 1.5), broken, replace(broken, id="cand_2", ordinal=2)]).stop_reason is None
    slow = ok(1, 1.1)
    assert advance(job, [ok(0, 1.5), slow, replace(slow, id="cand_2", ordinal=2)]).stop_reason == StopReason.STAGNATED


def test_a_gain_below_the_noise_is_no_improvement() -> None:
    job = job_view(stop=StopRules(stagnation=2))
    assert advance(job, [ok(0, 1.5), ok(1, 1.505), ok(2, 1.51)]).stop_reason == StopReason.STAGNATED
    assert advance(job, [ok(0, 1.5), ok(1, 1.505), ok(2, 1.6)]).stop_reason is None


def test_nothing_to_try_is_exhausted() -> None:
    rejected = Node("cand_0", 0, Operator.SEED, ProposerKind.BUILTIN, state=State.REJECTED, failure=Failure.EXHAUSTED)
    assert advance(job_view(), [rejected]) == Decision(stop_reason=StopReason.EXHAUSTED)


def test_dead_providers_and_nothing_else_to_do_is_an_error() -> None:
    world = World(job_view(30, models=("a", "b"), builtin=False, slots=2), random.Random(3), provider_down=1.0)
    assert world.run() == StopReason.ERROR
    delays = [expansion.delay_s for decision in world.decisions for expansion in decision.expansions]
    assert delays == [0.0, 0.0, 2.0, 4.0, 8.0, 16.0]


def test_dead_providers_leave_the_built_in_proposer_at_work() -> None:
    world = World(job_view(12, models=("a",), slots=2), random.Random(3), provider_down=1.0, failing=0.0, duplicate=0.0)
    assert world.run() == StopReason.BUDGET_CANDIDATES
    assert any(node.operator == Operator.TUNE for node in world.tree)
