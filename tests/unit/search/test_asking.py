"""An outside agent among the models: its turns, its bound, and that nobody waits for it who need not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.advance import advance
from search.asking import answering, most_open_asks
from search.stopping import MAX_FREE_REJECTIONS_PER_CANDIDATE
from search.tree import Tree
from search.types import IN_FLIGHT, Expansion, Failure, Node, Operator, PolicyName, ProposerKind, State
from tests.unit.search.worlds import MAX_MOVES, World, job_view

ASK = ProposerKind.ASK_TELL

worlds = st.builds(
    lambda seed, policy, candidates, slots, models, failing, down: World(
        job=job_view(candidates, policy=policy, slots=slots, models=models, seed=seed % 7),
        dice=random.Random(seed),
        failing=failing,
        provider_down=down,
    ),
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(list(PolicyName)),
    candidates=st.integers(1, 25),
    slots=st.integers(1, 4),
    models=st.sampled_from([("ask/tell",), ("a", "ask/tell"), ("ask/tell", "a", "b")]),
    failing=st.sampled_from([0.0, 0.4]),
    down=st.sampled_from([0.0, 0.2, 1.0]),
)


def question(ordinal: int, **changes: object) -> Node:
    return replace(Node(f"c{ordinal}", ordinal, Operator.SEED, ASK), **changes)  # type: ignore[arg-type]


def failed_call(ordinal: int, model: str = "a") -> Node:
    return Node(
        f"c{ordinal}",
        ordinal,
        Operator.SEED,
        ProposerKind.LLM,
        model,
        state=State.REJECTED,
        failure=Failure.PROVIDER_ERROR,
    )


@settings(max_examples=80, deadline=None)
@given(worlds)
def test_every_job_ends_within_its_budget_its_slots_and_its_bound_on_questions(world: World) -> None:
    for _ in range(MAX_MOVES):
        decision = world.step()
        tree = Tree(world.tree)
        assert tree.open_asks <= most_open_asks(world.job)
        assert sum(node.in_flight and node.proposer != ASK for node in tree.nodes) <= world.job.slots
        # What was told waits for the device like anything else, and then nothing more is started but few questions.
        if tree.occupied > world.job.slots:
            assert all(each.proposer == ASK for each in decision.expansions)
            assert tree.in_flight <= most_open_asks(world.job) or not decision.expansions
        assert tree.spent <= world.job.budget.candidates
        if decision.stop_reason is not None:
            break
        world.something_happens()
    else:
        raise AssertionError("the job never ended")
    bound = MAX_FREE_REJECTIONS_PER_CANDIDATE * world.job.budget.candidates + world.job.slots
    assert tree.free_rejections <= bound + most_open_asks(world.job)


@pytest.mark.parametrize("policy", list(PolicyName))
def test_alone_it_gets_every_proposal_that_a_model_would_get(policy: PolicyName) -> None:
    world = World(job_view(30, policy=policy, models=("ask/tell",), builtin=False), random.Random(2), failing=0.2)
    world.run()
    assert {node.proposer for node in world.tree} == {ASK}
    assert {node.model for node in world.tree} == {None}
    assert policy == PolicyName.BEST_OF_N or any(node.operator == Operator.REFINE for node in world.tree)


def test_beside_a_model_it_has_its_turns() -> None:
    job = job_view(20, models=("a", "ask/tell"), slots=2)
    first = advance(job, []).expansions
    assert [(each.proposer, each.model) for each in first] == [("builtin", None), ("llm", "a"), (ASK, None)]
    world = World(job, random.Random(1), failing=0.0, duplicate=0.0, provider_down=0.0)
    world.run()
    made = [node.proposer for node in world.tree if node.operator not in (Operator.TUNE,)]
    assert made.count(ASK) >= 6 and made.count(ProposerKind.LLM) >= 6


@pytest.mark.parametrize("policy", list(PolicyName))
def test_an_agent_that_is_away_stops_nobody_else(policy: PolicyName) -> None:
    """Its questions stay open, take no slot, and the others spend the rest of the budget.

    Half of the turns are the bandit's over models, which soon gives an agent that is away none: of 40 enough are left.
    """
    job = job_view(40, policy=policy, models=("a", "ask/tell"), slots=2)
    world = World(job, random.Random(4), failing=0.0, duplicate=0.0, provider_down=0.0)
    for _ in range(MAX_MOVES):
        assert world.step().stop_reason is None
        waiting = [node for node in world.tree if node.proposer == ASK]
        if not any(node.state in IN_FLIGHT for node in world.tree if node not in waiting):
            break
        others = {node.id: node for node in world.tree if node not in waiting}
        aside, world.nodes = world.nodes, others
        world.something_happens()
        world.nodes = dict(sorted((aside | world.nodes).items()))
    assert len(waiting) == most_open_asks(job)
    assert sum(not node.free for node in world.tree) == job.budget.candidates


def test_with_enough_open_questions_and_nobody_else_the_search_waits() -> None:
    job = job_view(8, models=("ask/tell",), builtin=False)
    decided = advance(job, [])
    assert decided.expansions == (Expansion(Operator.SEED, ASK), Expansion(Operator.SEED, ASK))
    assert advance(job, [question(0), question(1)]).expansions == ()
    assert advance(job, [question(0), question(1, state=State.QUEUED)]).expansions == ()
    judged = question(1, state=State.EVALUATED, verdict="incorrect")
    assert advance(job, [question(0), judged]).expansions[0].proposer == ASK


def test_while_answers_wait_for_the_device_the_agent_is_asked_for_the_next() -> None:
    job = job_view(40, policy=PolicyName.BEST_OF_N, models=("ask/tell",), slots=2, builtin=False)
    answers = [question(number, state=State.QUEUED) for number in range(6)]
    assert advance(job, answers).expansions == ()
    judged = [replace(each, state=State.EVALUATED, verdict="incorrect") for each in answers[:2]]
    assert [each.proposer for each in advance(job, judged + answers[2:]).expansions] == [ASK, ASK]


def test_a_model_beside_it_waits_for_a_slot() -> None:
    job = job_view(40, policy=PolicyName.BEST_OF_N, models=("a", "ask/tell"), slots=2, builtin=False)
    answers = [question(number, state=State.QUEUED) for number in range(3)]
    assert {each.proposer for each in advance(job, answers).expansions} <= {ASK}
    for number in range(3, 5):  # whoever's turn it is
        answers.append(question(number, state=State.QUEUED))
        assert {each.proposer for each in advance(job, answers).expansions} <= {ASK}


def test_when_the_models_beside_it_are_dead_it_goes_on_alone() -> None:
    job = job_view(20, models=("a", "ask/tell"), builtin=False)
    alive, dead = [failed_call(n) for n in range(2)], [failed_call(n) for n in range(6)]
    assert answering(job, Tree(alive)) == ["a", "ask/tell"]
    assert answering(job, Tree(dead)) == ["ask/tell"]
    assert {each.proposer for each in advance(job, dead).expansions} == {ASK}


def test_a_question_waits_for_no_provider() -> None:
    job = job_view(20, models=("a", "ask/tell"), builtin=False, seed=1)
    (first, *_) = advance(job, [failed_call(0), failed_call(1)]).expansions
    assert (first.proposer, first.delay_s) == (ASK, 0.0)


GAVE_UP = question(0, state=State.REJECTED, failure=Failure.EXHAUSTED)


def test_who_has_nothing_more_to_propose_is_not_asked_again() -> None:
    tree = Tree([GAVE_UP, question(1, state=State.EVALUATED, verdict="ok", speedup=2.0)])
    assert answering(job_view(20, models=("ask/tell",)), tree) == []
    assert answering(job_view(20, models=("a", "ask/tell")), tree) == ["a"]


@pytest.mark.parametrize("policy", list(PolicyName))
def test_when_agents_have_nothing_more_the_others_go_on_and_then_the_job_ends(policy: PolicyName) -> None:
    job = job_view(8, policy=policy, models=("ask/tell",))
    told = question(1, state=State.EVALUATED, verdict="ok", speedup=2.0, tunable=True)
    first = advance(job, [GAVE_UP, told]).expansions
    assert first and {each.proposer for each in first} == {ProposerKind.BUILTIN}
    alone = job_view(8, policy=policy, models=("ask/tell",), builtin=False)
    decided = advance(alone, [GAVE_UP, told])
    # Tuning is nobody's proposal: some policies do it all the same where the built-in proposer is switched off.
    assert {each.operator for each in decided.expansions} <= {Operator.TUNE}
    assert decided.expansions or decided.stop_reason == "exhausted"
