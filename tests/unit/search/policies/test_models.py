"""The bandit over models: what gives more for its money gets more, nobody is starved, and turns are kept."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from search.policies import Levers
from search.policies.models import SHARE, pick_model
from search.policies.moves import Moves
from search.policies.uct import Uct
from search.tree import Tree
from search.types import Failure, JobView, Node, Operator, ProposerKind, State, Verdict
from tests.unit.search.policies.landscapes import flying, node
from tests.unit.search.worlds import job_view

MODELS = ("a", "b")


def picks(tree: list[Node], models: tuple[str, ...] = MODELS) -> Counter[str | None]:
    return Counter(pick_model(job_view(20, models=models, seed=seed), Tree(tree)) for seed in range(400))


def tries(model: str, first: int, speedups: list[float | None], **changes: Any) -> list[Node]:
    """Seeds of a model: accepted with a speedup, or wrong."""
    wrong: dict[str, Any] = {"verdict": Verdict.INCORRECT, "speedup": None}
    return [
        node(n, Operator.SEED, model=model, **changes, **(wrong if s is None else {"speedup": s}))
        for n, s in enumerate(speedups, start=first)
    ]


def test_about_half_of_the_proposals_are_left_to_turns() -> None:
    assert abs(picks([])[None] / 400 - (1 - SHARE)) < 0.1


def test_before_the_first_try_all_are_alike() -> None:
    found = picks([])
    assert 0.6 < found["a"] / found["b"] < 1.7


def test_the_model_whose_candidates_are_right_and_fast_is_asked_more_and_the_other_keeps_its_turns() -> None:
    found = picks([*tries("a", 0, [2.0, 2.2, None, 1.8]), *tries("b", 4, [None, 0.7, None, None])])
    assert found["a"] > 3 * found["b"]
    assert found[None] > 150


def test_the_same_for_more_money_is_worth_less() -> None:
    tree = [*tries("a", 0, [1.5, 1.5, 1.5]), *tries("b", 3, [1.5, 1.5, 1.5], cost_usd=Decimal("0.5"))]
    found = picks(tree)
    assert found["a"] > 2 * found["b"]


def test_a_step_is_measured_by_its_parent_and_not_by_the_baseline() -> None:
    parent = node(0, Operator.SEED, ProposerKind.BUILTIN, speedup=3.0)
    better = [node(n, Operator.REFINE, model="a", parents=("c0",), speedup=4.0) for n in (1, 2, 3)]
    worse = [node(n, Operator.REFINE, model="b", parents=("c0",), speedup=2.9) for n in (4, 5, 6)]
    found = picks([parent, *better, *worse])
    assert found["a"] > 2 * found["b"]


def test_what_is_in_flight_counts_as_a_try() -> None:
    found = picks([flying(n, model="a") for n in range(4)])
    assert found["b"] > 1.5 * found["a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.CANCELLED, "verdict": None, "speedup": None},
        {"verdict": Verdict.INFRA_ERROR, "speedup": None},
        {"state": State.REJECTED, "verdict": None, "speedup": None, "failure": Failure.BUDGET},
    ],
)
def test_what_is_not_the_models_fault_does_not_count(changes: dict[str, Any]) -> None:
    found = picks([node(n, model="a", **changes) for n in range(12)])
    assert 0.6 < found["a"] / found["b"] < 1.7


def test_a_model_that_keeps_failing_is_passed_over() -> None:
    down = {"state": State.REJECTED, "verdict": None, "speedup": None, "failure": Failure.PROVIDER_ERROR}
    found = picks([node(n, model="a", **down) for n in range(2)])
    assert found["a"] == 0 and found[None] == 400, "one model is left: there is nothing to choose"


def test_an_agent_from_outside_is_known_by_its_kind() -> None:
    good = [node(n, Operator.SEED, ProposerKind.ASK_TELL, speedup=2.0) for n in range(4)]
    found = picks([*good, *tries("b", 4, [None] * 4)], ("ask/tell", "b"))
    assert found["ask/tell"] > 3 * found["b"]


def expansions(levers: Levers, models: tuple[str, ...]) -> list[str | None]:
    tree = [*tries("a", 0, [2.0, 2.2, 1.9]), *tries("b", 3, [None, None, None])]
    made = []
    for seed in range(60):
        job: JobView = job_view(40, models=models, seed=seed, builtin=False)
        expansion = Uct(levers).next_expansion(job, Tree(tree))
        assert expansion is not None
        made.append(expansion.model)
    return made


def test_the_lever_switches_it_off() -> None:
    on, off = Counter(expansions(Levers(), MODELS)), Counter(expansions(Levers(models=False), MODELS))
    assert on["a"] > on["b"]
    assert off == {"a": 30, "b": 30} or abs(off["a"] - off["b"]) <= 2


def test_with_one_model_no_decision_changes() -> None:
    assert expansions(Levers(), ("a",)) == expansions(Levers(models=False), ("a",))


def test_seeds_and_steps_both_ask_it() -> None:
    tree = Tree([*tries("a", 0, [2.0] * 6), *tries("b", 6, [None] * 6)])
    now = [Moves(job_view(20, models=MODELS, seed=seed), tree) for seed in range(80)]
    for seen in (
        [moves.seed().model for moves in now],
        [moves.step(Operator.REFINE, tree.nodes[0]).model for moves in now],
    ):
        assert seen.count("a") > seen.count("b") > 0
