"""Which expansion comes next, and from whom."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from search.advance import advance
from search.policy import (
    BuiltinPolicy,
    EnsemblePolicy,
    builtin_seed,
    default_policy,
    next_parent,
    next_tuning,
    seed_index,
)
from search.tree import Tree
from search.types import Decision, Expansion, Failure, Node, Operator, ProposerKind, State, StopReason, Verdict
from tests.unit.search.worlds import World, job_view

BUILTIN, LLM = ProposerKind.BUILTIN, ProposerKind.LLM


def node(ordinal: int, operator: str = Operator.SEED, proposer: str = BUILTIN, **changes: object) -> Node:
    made = Node(f"c{ordinal}", ordinal, operator, proposer, state=State.EVALUATED, verdict=Verdict.OK, speedup=1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def rejected(
    ordinal: int, failure: Failure, operator: str = Operator.SEED, proposer: str = BUILTIN, **changes: object
) -> Node:
    return node(
        ordinal, operator, proposer, state=State.REJECTED, verdict=None, speedup=None, failure=failure, **changes
    )


def test_the_policy_follows_from_the_models() -> None:
    assert isinstance(default_policy(job_view()), BuiltinPolicy)
    assert isinstance(default_policy(job_view(models=("a",))), EnsemblePolicy)


def test_a_small_budget_sees_seeds_and_tuning() -> None:
    world = World(job_view(8), random.Random(0), menu=20, failing=0.0, duplicate=0.0)
    world.run()
    counts = Counter(n.operator for n in world.tree)
    assert counts == {Operator.SEED: 4, Operator.TUNE: 4}
    assert [n.operator for n in world.tree[:4]] == [Operator.SEED] * 4


def test_a_short_menu_leaves_the_rest_to_tuning() -> None:
    tree = [node(0, speedup=1.5, tunable=True), rejected(1, Failure.EXHAUSTED)]
    assert advance(job_view(8), tree).expansions == (Expansion(Operator.TUNE, BUILTIN, parents=("c0",)),)


def test_without_a_space_seeds_take_the_whole_budget() -> None:
    tree = [node(n, speedup=1.5) for n in range(5)]
    assert advance(job_view(8), tree).expansions == (Expansion(Operator.SEED, BUILTIN),)


def test_tuning_waits_for_a_seed_in_flight_that_may_be_the_better_space() -> None:
    flying = node(3, state=State.EVALUATING, verdict=None, speedup=None)
    tree = [node(0), node(1), node(2), flying]
    assert advance(job_view(8, slots=2), tree).expansions == ()


def test_the_best_space_gets_all_steps() -> None:
    tree = [node(0, speedup=1.5, tunable=True), node(1, speedup=2.0, tunable=True), node(2, speedup=1.0, tunable=True)]
    for ordinal in range(3, 7):
        expansion = next_tuning(Tree(tree))
        assert expansion is not None and expansion.parents == ("c1",)
        tree.append(node(ordinal, Operator.TUNE, parents=expansion.parents, speedup=0.5, tunable=True))


def test_a_tuned_variant_raises_its_space_in_the_ranking() -> None:
    tree = [node(0, speedup=1.5, tunable=True), node(1, speedup=2.0, tunable=True), node(2, speedup=1.9, tunable=True)]
    tree.append(node(3, Operator.TUNE, parents=("c0",), speedup=3.0, tunable=True))
    expansion = next_tuning(Tree(tree))
    assert expansion is not None and expansion.parents == ("c0",)


@pytest.mark.parametrize(
    "closing",
    [
        [rejected(2, Failure.EXHAUSTED, Operator.TUNE, parents=("c1",))],
        [rejected(n, Failure.DUPLICATE, Operator.TUNE, parents=("c1",)) for n in range(2, 7)],
    ],
)
def test_a_space_with_nothing_new_gives_way_to_the_next(closing: list[Node]) -> None:
    tree = [node(0, speedup=1.5, tunable=True), node(1, speedup=2.0, tunable=True), *closing]
    expansion = next_tuning(Tree(tree))
    assert expansion is not None
    assert expansion.parents == ("c0",)
    assert next_tuning(Tree(tree[1:])) is None


@pytest.mark.parametrize("unfit", [{"tunable": False}, {"speedup": None}, {"verdict": Verdict.INCORRECT}])
def test_only_accepted_timed_spaces_are_tuned(unfit: dict[str, object]) -> None:
    fit = node(0, tunable=True)
    assert next_tuning(Tree([fit])) is not None
    assert next_tuning(Tree([replace(fit, **unfit)])) is None  # type: ignore[arg-type]


def test_a_built_in_seed_knows_its_place_in_the_menu() -> None:
    tree = Tree([node(0), node(1, Operator.SEED, LLM), rejected(2, Failure.DUPLICATE), node(3)])
    assert [seed_index(tree, n) for n in tree.made_by(Operator.SEED, BUILTIN)] == [0, 1, 2]


# --- with models ------------------------------------------------------------------------------------------------------


def test_models_take_turns_at_seeds_beside_one_built_in_seed() -> None:
    job = job_view(20, models=("a", "b"), slots=6, seed=1)
    expansions = advance(job, []).expansions
    assert [(e.operator, e.proposer, e.model) for e in expansions] == [
        (Operator.SEED, BUILTIN, None),
        (Operator.SEED, LLM, "b"),
        (Operator.SEED, LLM, "a"),
        (Operator.SEED, LLM, "b"),
        (Operator.SEED, LLM, "a"),
        (Operator.SEED, LLM, "b"),
    ]


@pytest.mark.parametrize("job", [job_view(20, models=("a",), builtin=False), job_view(3, models=("a",))])
def test_models_alone_where_it_is_asked_or_the_budget_is_tiny(job: object) -> None:
    assert advance(job, []).expansions[0].proposer == LLM  # type: ignore[arg-type]


def seeded(*last: Node) -> list[Node]:
    """A tree after its seeds: a slow and a fast one of the models."""
    return [
        node(0, speedup=1.0),
        node(1, Operator.SEED, LLM, speedup=1.2),
        node(2, Operator.SEED, LLM, speedup=2.0),
        *last,
    ]


def next_step(tree: list[Node], **changes: object) -> Expansion:
    """The next expansion of a job with a budget of 8: two model seeds are wanted."""
    (expansion,) = advance(job_view(8, models=("a",), **changes), tree).expansions
    return expansion


def test_after_the_seeds_the_fast_one_is_refined() -> None:
    expansion = next_step(seeded())
    assert (expansion.operator, expansion.parents) == (Operator.REFINE, ("c2",))


def test_a_failed_candidate_is_repaired_in_its_turn_and_at_most_three_times() -> None:
    failed = {"verdict": Verdict.INCORRECT, "speedup": None}
    tree = [node(0), node(1, Operator.SEED, LLM, **failed), node(2, Operator.SEED, LLM)]
    job = job_view(40, models=("a",), builtin=False)
    for ordinal in range(3, 38):
        expansions = EnsemblePolicy().next_expansion(job, Tree(tree))
        assert expansions is not None
        outcome = failed if expansions.operator == Operator.REPAIR else {"speedup": 1.1}
        tree.append(node(ordinal, expansions.operator, LLM, parents=expansions.parents, **outcome))
    repairs = [n for n in tree if n.operator == Operator.REPAIR]
    assert [n.parents[0] for n in repairs] == ["c1", repairs[0].id, repairs[1].id]


def test_a_repair_without_code_is_a_try_and_the_same_failure_is_tried_again() -> None:
    failed = node(1, Operator.SEED, LLM, verdict=Verdict.BUILD_ERROR, speedup=None)
    no_code = rejected(2, Failure.NO_CODE, Operator.REPAIR, LLM, parents=("c1",))
    expansion = next_step([node(0), failed, no_code, replace(failed, id="c3", ordinal=3, verdict=Verdict.SUSPICIOUS)])
    assert (expansion.operator, expansion.parents) == (Operator.REPAIR, ("c1",))


def test_cheats_are_not_repaired() -> None:
    cheat = node(1, Operator.SEED, LLM, verdict=Verdict.SUSPICIOUS, speedup=None)
    expansion = next_step([node(0, verdict=Verdict.INCORRECT, speedup=None), cheat, replace(cheat, id="c2", ordinal=2)])
    assert (expansion.operator, expansion.parents) == (Operator.TRANSLATE, ())


def test_when_no_seed_works_every_second_one_is_a_plain_translation() -> None:
    def failed(ordinal: int, operator: str = Operator.SEED) -> Node:
        return rejected(ordinal, Failure.REFUSED, operator, LLM)

    def step() -> str:
        expansion = EnsemblePolicy().next_expansion(job_view(8, models=("a",)), Tree(tree))
        assert expansion is not None
        return expansion.operator

    tree = [node(0, verdict=Verdict.INFRA_ERROR, speedup=None), failed(1), failed(2)]
    asked = []
    for ordinal in range(3, 9):
        asked.append(step())
        tree.append(failed(ordinal, asked[-1]))
    assert asked == [Operator.TRANSLATE, Operator.SEED] * 3
    flying = node(9, Operator.TRANSLATE, LLM, state=State.EVALUATING, verdict=None, speedup=None)
    tree.append(flying)
    assert step() == Operator.SEED
    tree[-1] = replace(flying, state=State.EVALUATED, verdict=Verdict.OK)
    assert step() == Operator.REFINE


def test_before_any_seed_has_failed_nothing_is_translated() -> None:
    flying = [node(n, Operator.SEED, LLM, state=State.PROPOSING, verdict=None, speedup=None) for n in range(1, 3)]
    tree = [node(0, verdict=Verdict.INFRA_ERROR, speedup=None), *flying]
    assert next_step(tree, slots=3).operator == Operator.SEED


def test_a_parent_with_many_children_gives_way() -> None:
    tree = seeded(*[node(n, Operator.REFINE, LLM, parents=("c2",), speedup=0.5) for n in range(3, 7)])
    parent = next_parent(Tree(tree))
    assert parent is not None
    assert parent.id == "c1"


def test_of_a_kernel_and_its_tuned_variants_only_the_fastest_is_a_parent() -> None:
    tuned = [node(n, Operator.TUNE, parents=("c2",), speedup=1.9 + n / 10) for n in range(3, 6)]
    parent = next_parent(Tree(seeded(*tuned)))
    assert parent is not None
    assert parent.id == "c5"


def test_every_kind_of_step_gets_its_turn() -> None:
    world = World(
        job_view(40, models=("a", "b"), slots=2), random.Random(5), duplicate=0.0, provider_down=0.0, failing=0.2
    )
    world.run()
    counts = Counter(n.operator for n in world.tree)
    assert counts[Operator.REFINE] > counts[Operator.REWRITE] > 0
    assert counts[Operator.TUNE] > 0
    assert counts[Operator.REPAIR] > 0


def test_a_model_that_keeps_failing_is_passed_over() -> None:
    errors = [rejected(n, Failure.PROVIDER_ERROR, Operator.SEED, LLM, model="a") for n in (0, 1)]
    answer = node(2, Operator.SEED, LLM, model="b")
    job = job_view(40, models=("a", "b"), builtin=False, slots=4)
    assert {e.model for e in advance(job, [*errors, answer]).expansions} == {"b"}


def test_while_providers_fail_one_call_probes_them_after_a_pause() -> None:
    errors = [rejected(n, Failure.PROVIDER_ERROR, Operator.SEED, LLM, model="a") for n in (0, 1, 2)]
    job = job_view(40, models=("a",), builtin=False, slots=4)
    (probe,) = advance(job, errors).expansions
    assert probe.delay_s == 4.0


def test_a_built_in_proposer_that_keeps_crashing_is_given_up_and_that_is_an_error() -> None:
    crashes = [rejected(n, Failure.PROVIDER_ERROR) for n in range(5)]
    assert advance(job_view(8), crashes[:4]).expansions == (builtin_seed(),)
    assert advance(job_view(8), crashes) == Decision(stop_reason=StopReason.ERROR)
    after_a_success = [node(0), *(replace(crash, ordinal=crash.ordinal + 1) for crash in crashes)]
    assert advance(job_view(8), after_a_success) == Decision(stop_reason=StopReason.EXHAUSTED)
