"""What holds for every policy, in landscapes of any kind and at any moment of a search."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.advance import advance
from search.policies import DEFAULT, POLICIES, policy_for
from search.policy import BuiltinPolicy, EnsemblePolicy
from search.stopping import MAX_FREE_REJECTIONS_PER_CANDIDATE
from search.tree import Tree
from search.types import IN_FLIGHT, Decision, Expansion, Node, Operator, PolicyName, ProposerKind, StopReason, Verdict
from tests.unit.search.policies.landscapes import NAMED, Landscape, fits, landscape, landscapes
from tests.unit.search.worlds import MAX_MOVES, job_view


def test_every_name_has_its_policy() -> None:
    assert set(POLICIES) == set(NAMED)
    assert all(policy_for(job_view(policy=name)) is POLICIES[name] for name in NAMED)


def test_the_default_is_one_constant() -> None:
    assert DEFAULT is None
    assert isinstance(policy_for(job_view()), BuiltinPolicy)
    assert isinstance(policy_for(job_view(models=("a",))), EnsemblePolicy)


@settings(max_examples=150, deadline=None)
@given(landscapes)
def test_every_search_ends_within_its_budget_and_its_slots(world: Landscape) -> None:
    for _ in range(MAX_MOVES):
        decision = world.step()
        assert sum(node.state in IN_FLIGHT for node in world.tree) <= world.job.slots
        assert sum(not node.free for node in world.tree) <= world.job.budget.candidates
        if decision.stop_reason is not None:
            break
        world.something_happens()
    else:
        raise AssertionError("the search never ended")
    free = sum(node.free for node in world.tree)
    assert free <= MAX_FREE_REJECTIONS_PER_CANDIDATE * world.job.budget.candidates + world.job.slots


@settings(max_examples=80, deadline=None)
@given(landscapes, st.integers(0, 60))
def test_a_search_that_is_cut_goes_on_as_it_would_have(world: Landscape, moves: int) -> None:
    """Read anew, in any order and with other ids, the tree gives the same next decision; a second look gives none."""
    for _ in range(moves):
        if world.step().stop_reason is not None:
            return
        assert advance(world.job, world.tree).expansions == ()
        world.something_happens()
    decision = advance(world.job, world.tree)
    read = [Node(**asdict(node)) for node in reversed(world.tree)]
    assert advance(world.job, read) == decision
    assert _renamed(advance(replace(world.job, id="job_2"), [_rename(node) for node in read])) == decision


def _rename(node: Node) -> Node:
    return replace(node, id=node.id[::-1], parents=tuple(parent[::-1] for parent in node.parents))


def _renamed(decision: Decision) -> Decision:
    back = [replace(e, parents=tuple(parent[::-1] for parent in e.parents)) for e in decision.expansions]
    return replace(decision, expansions=tuple(back))


@settings(max_examples=60, deadline=None)
@given(landscapes, st.integers(0, 40))
def test_slots_that_fall_free_together_are_filled_as_one_by_one(world: Landscape, moves: int) -> None:
    for _ in range(moves):
        if world.step().stop_reason is not None:
            return
        world.something_happens()
    together = advance(world.job, world.tree)
    tree, one_by_one = Tree(world.tree), list[Expansion]()
    for slots in range(tree.in_flight + 1, world.job.slots + 1):
        for expansion in advance(replace(world.job, slots=slots), tree.nodes).expansions:
            one_by_one.append(expansion)
            tree = tree.grown(expansion)
    # Below the number of slots, failing providers count as dead a little earlier.
    if not any(node.failure for node in tree.nodes):
        assert tuple(one_by_one) == together.expansions


@settings(max_examples=120, deadline=None)
@given(landscapes)
def test_no_operator_is_proposed_that_its_parents_cannot_take(world: Landscape) -> None:
    for _ in range(MAX_MOVES):
        tree = Tree(world.tree)
        decision = world.step()
        for expansion in decision.expansions:
            assert fits(expansion, tree, world), expansion
        if decision.stop_reason is not None:
            return
        world.something_happens()


@pytest.mark.parametrize("policy", NAMED)
def test_the_seed_alone_decides(policy: PolicyName) -> None:
    def history(seed: int) -> list[tuple[str, tuple[str, ...]]]:
        world = landscape(5, policy)
        world.job = replace(world.job, seed=seed)
        world.run()
        return [(node.operator, node.parents) for node in world.tree]

    assert history(1) == history(1)


@pytest.mark.parametrize("policy", NAMED)
def test_seeds_come_first_and_one_of_them_is_built_in(policy: PolicyName) -> None:
    job = job_view(20, policy=policy, models=("a", "b"), slots=6)
    expansions = advance(job, []).expansions
    assert [e.operator for e in expansions] == [Operator.SEED] * 6
    assert [e.proposer for e in expansions] == [ProposerKind.BUILTIN, *[ProposerKind.LLM] * 5]


@pytest.mark.parametrize("policy", NAMED)
def test_without_models_seeds_and_tuning_share_the_budget(policy: PolicyName) -> None:
    world = landscape(3, policy, 20, models=(), menu=6, space=30, failing=0.0, duplicate=0.0)
    assert world.run() == StopReason.BUDGET_CANDIDATES
    made = [node for node in world.tree if not node.free]
    assert {node.operator for node in made} == {Operator.SEED, Operator.TUNE}
    assert sum(node.operator == Operator.SEED for node in made) == 6


@pytest.mark.parametrize("policy", NAMED)
def test_a_menu_and_spaces_that_are_used_up_end_the_search(policy: PolicyName) -> None:
    world = landscape(3, policy, 60, models=(), menu=3, space=4, failing=0.0, duplicate=0.0)
    assert world.run() == StopReason.EXHAUSTED


@pytest.mark.parametrize("policy", NAMED)
def test_dead_providers_leave_the_built_in_proposer_at_work(policy: PolicyName) -> None:
    world = landscape(3, policy, 12, provider_down=1.0, failing=0.0, duplicate=0.0, space=30)
    assert world.run() in (StopReason.BUDGET_CANDIDATES, StopReason.EXHAUSTED)
    world = landscape(3, policy, 12, provider_down=1.0)
    world.job = replace(world.job, builtin=False)
    assert world.run() == StopReason.ERROR


@pytest.mark.parametrize("policy", [name for name in NAMED if name != PolicyName.BEST_OF_N])
def test_what_failed_is_repaired_and_cheats_are_not(policy: PolicyName) -> None:
    world = landscape(8, policy, 60, failing=0.4)
    world.run()
    repaired = [world.nodes[node.parents[0]].verdict for node in world.tree if node.operator == Operator.REPAIR]
    assert repaired
    assert Verdict.SUSPICIOUS not in repaired


@pytest.mark.parametrize("policy", [PolicyName.UCT, PolicyName.ISLANDS, PolicyName.ARCHIVE, PolicyName.GREEDY])
def test_when_nothing_works_a_plain_translation_is_tried_in_between(policy: PolicyName) -> None:
    world = landscape(8, policy, 24, failing=1.0)
    world.job = replace(world.job, builtin=False)
    world.run()
    assert any(node.operator == Operator.TRANSLATE for node in world.tree)
    assert any(node.operator == Operator.SEED for node in world.tree[-8:])
