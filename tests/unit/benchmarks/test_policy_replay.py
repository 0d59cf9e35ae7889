"""Replay of recorded pools: answers are recorded programs, the same seed gives the same search, budgets hold."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.policy import intervals, pool, summary, table
from benchmarks.policy.contenders import NOT_IN_REPLAY, USUAL, ablations, default_name, policies
from benchmarks.policy.genome import ALGORITHM
from benchmarks.policy.live import LiveSearch, Notes, OutOfTime
from benchmarks.policy.pool import Record
from benchmarks.policy.programs import SPACES
from benchmarks.policy.record import propose
from benchmarks.policy.replay import search
from benchmarks.policy.world import World, misfit, planned
from search.policies.levers import Levers
from search.policies.uct import Uct
from search.types import Expansion, Failure, Operator, ProposerKind, State

PROBLEM = "softmax"
SPACE = SPACES[PROBLEM]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return pool.load(PROBLEM)


def _by_model(operator: Operator, *parents: str) -> Expansion:
    return Expansion(operator, ProposerKind.LLM, "any", parents)


def test_pools_are_large_connected_and_failing(records: list[Record]) -> None:
    for place, record in enumerate(records):
        assert record.id == place
        assert all(parent < place for parent in record.parents)
        assert record.ok == (record.speedup is not None and record.verdict == "ok")
    assert 0.1 < sum(not record.ok for record in records) / len(records) < 0.7
    assert len({record.genome for record in records}) == len(records)


def test_the_same_search_twice_is_the_same_search(records: list[Record]) -> None:
    first, again = (search(SPACE, records, Uct(), seed=3, budget=20) for _time in range(2))
    assert first == again
    assert first != search(SPACE, records, Uct(), seed=4, budget=20)
    assert len(first.curve) == 20 and list(first.curve) == sorted(first.curve)
    assert 0.0 <= first.area <= first.curve[-1] <= 1.0


@pytest.mark.parametrize("name", policies())
def test_every_policy_searches_a_pool(records: list[Record], name: str) -> None:
    run = search(SPACE, records, policies()[name], seed=0, budget=12)
    answers = run.answers
    assert answers.recorded + answers.fitting + answers.nearest >= 12
    assert run.final in {record.speedup for record in records if record.ok}


def test_a_refinement_is_a_recorded_program_that_keeps_the_algorithm(records: list[Record]) -> None:
    world = World(SPACE, records, seed=1)
    seed = world.answer(planned(_by_model(Operator.SEED), 0))
    parent = world.held[seed.id]
    for ordinal in range(1, 6):
        child = world.answer(planned(_by_model(Operator.REFINE, seed.id), ordinal))
        held = world.held[child.id]
        assert (child.verdict, child.speedup) == (held.verdict, held.speedup)
        if misfit(Operator.REFINE, [parent.genome], held) == 0:
            assert held.genome.gene(ALGORITHM) == parent.genome.gene(ALGORITHM)
    assert len(world.held) == len({record.id for record in world.held.values()}), "a program was given twice"


def test_the_tuner_comes_to_the_end_of_its_space(records: list[Record]) -> None:
    world = World(SPACE, records, seed=1)
    tuned: dict[object, set[object]] = {}
    for each in records:
        if each.ok:
            tuned.setdefault(each.genome.structure, set()).add(each.genome.tunables)
    record = next(each for each in records if each.ok and len(tuned[each.genome.structure]) > 1)
    world.held["c0"], world.seen = record, {record.id}
    ended = []
    for ordinal in range(1, len(records)):
        node = world.answer(planned(Expansion(Operator.TUNE, ProposerKind.BUILTIN, parents=("c0",)), ordinal))
        ended.append(node)
        if node.failure is not None:
            break
        assert world.held[node.id].genome.structure == record.genome.structure
    assert ended[-1].state == State.REJECTED and ended[-1].failure == Failure.EXHAUSTED
    assert len(ended) > 1


def test_failures_are_as_frequent_as_in_the_pool(records: list[Record]) -> None:
    rate = pool.failures(records)[Operator.SEED]
    failed = 0
    for seed in range(300):
        world = World(SPACE, records, seed)
        failed += not world.answer(planned(_by_model(Operator.SEED), 0)).ok
    assert abs(failed / 300 - rate) < 0.1


def test_recording_goes_on_where_it_stopped_and_repeats_nothing(records: list[Record]) -> None:
    first, again = propose(SPACE, records[:40]), propose(SPACE, records[:40])
    assert first == again is not None
    assert first.genome not in {record.genome for record in records[:40]}


def test_a_line_that_was_cut_off_is_not_read(records: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [json.dumps(record.to_json()) for record in records[:3]]
    path.write_text("\n".join(lines)[:-5], encoding="utf-8")
    assert pool.read(path) == records[:2]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    pool.pack("p", path, tmp_path)
    assert pool.load("p", tmp_path) == records[:3]


def test_intervals_hold_what_they_are_about() -> None:
    ours = {"a": [0.4, 0.5, 0.6, 0.7], "b": [0.5, 0.5, 0.9, 0.8]}
    theirs = {name: [value - 0.1 for value in values] for name, values in ours.items()}
    middle, low, high = intervals.median_interval(ours)
    assert low <= middle <= high and middle == pytest.approx(0.55)
    assert intervals.win_rate(ours, theirs) == (1.0, 1.0, 1.0)
    assert intervals.win_rate(ours, ours)[0] == 0.5
    assert intervals.mean_difference(theirs, ours)[0] == pytest.approx(-0.1)


def test_a_lever_helps_only_where_the_interval_says_so() -> None:
    row = {"reached_difference": [0.0, 0.0, 0.0], "area_difference": [-0.02, -0.03, -0.01]}
    noise = row | {"area_difference": [-0.02, -0.05, 0.01]}
    text = table.ablated({USUAL: row, "no cells": row, "no tune": noise})
    assert "| no cells | +0.000 [+0.000, +0.000] | -0.020 [-0.030, -0.010] | right as it is |" in text
    assert "no difference shown" in text


def test_every_lever_is_switched_off_once() -> None:
    switched = [policy.levers for name, policy in ablations().items() if name != USUAL and isinstance(policy, Uct)]
    assert len(set(switched)) == len(switched) == len(fields(Levers)) - len(NOT_IN_REPLAY)
    assert default_name() in policies()


def test_what_a_pool_holds_is_told(records: list[Record]) -> None:
    facts = summary.pool_facts(records)
    assert sum(facts["verdicts"].values()) == facts["programs"] == len(records)
    assert facts["speedup"]["slowest"] <= facts["speedup"]["median"] <= facts["speedup"]["fastest"]


def test_a_live_search_without_a_judge_stops_at_what_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime):
        LiveSearch("softmax", Uct(), 0, Notes(tmp_path / "none.jsonl", None)).run()
