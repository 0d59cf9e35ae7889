"""UCT over representatives: who competes, that no cell starves, and that it is greedy until it stagnates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.policies import Levers
from search.policies.moves import STEPS, Moves
from search.policies.operators import LARGE_STEPS
from search.policies.uct import GREEDY, PER_CELL, POOL_SIZE, QUOTA, Uct, representatives, upper_bounds
from search.tree import Tree
from search.types import Node, Operator, PolicyName, ProposerKind
from tests.unit.search.policies.landscapes import PLANS, failed, fits, flying, landscape, node
from tests.unit.search.worlds import job_view

BUILTIN = ProposerKind.BUILTIN


def seeds(*speedups: float) -> list[Node]:
    """Seeds of as many families: a built-in one, then those of models."""
    return [
        node(n, Operator.SEED, BUILTIN if n == 0 else ProposerKind.LLM, speedup=speedup, plan=PLANS[n % len(PLANS)])
        for n, speedup in enumerate(speedups)
    ]


def moves(tree: list[Node], seed: int = 0, candidates: int = 8) -> Moves:
    return Moves(job_view(candidates, models=("a",), seed=seed), Tree(tree))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_no_cell_starves(seed: int, slots: int) -> None:
    """A cell with a kernel is built upon once in a quota of candidates, however poor its kernels are."""
    world = landscape(seed, PolicyName.UCT, 60, slots=slots, failing=0.2, duplicate=0.0, provider_down=0.0)
    # A tuned variant may move its kernel to another cell: without, cells stand still.
    world.policy = Uct(Levers(tune=False), quota=2)
    waited: Counter[object] = Counter()
    most = 0
    for _ in range(300):
        now = Moves(world.job, Tree(world.tree))
        standing = {now.cell(kernel): kernel for kernel in now.pool}
        most = max(most, len(standing))
        decision = world.step()
        if decision.stop_reason is not None:
            break
        for expansion in decision.expansions:
            assert fits(expansion, now.tree, world)
            grown = {now.cell(now.tree.by_id[parent]) for parent in expansion.parents if parent in now.tree.by_id}
            # A single cell has no quota: only repairs, say, of what failed may come before it.
            due = standing if len(standing) > 1 else {}
            waited = Counter({cell: 0 if cell in grown else waited[cell] + 1 for cell in due})
            # Cells that reach their quota together take turns.
            assert all(steps <= (2 + 1) * (most + 1) for steps in waited.values())
        world.something_happens()


def test_a_cell_that_waited_too_long_comes_before_what_pays() -> None:
    crowd = [node(n, Operator.REFINE, parents=("c2",), speedup=3.0 + n / 10, plan="x") for n in range(3, 3 + 3 * QUOTA)]
    tree = [*seeds(1.0, 1.1, 3.0), *crowd]
    job = job_view(8, models=("a",))
    grown = Tree(tree)
    picked: set[str] = set()
    for _ in range(2):
        expansion = Uct().next_expansion(job, grown)
        assert expansion is not None
        picked |= set(expansion.parents)
        grown = grown.grown(expansion)
    assert {"c0", "c1"} <= picked
    free = Uct(Levers(cells=False)).next_expansion(job, Tree(tree))
    assert free is not None
    assert free.parents[0] not in ("c0", "c1")


def test_the_fastest_of_each_cell_compete() -> None:
    tree = [node(n, speedup=1.0 + n, plan=PLANS[n % 2]) for n in range(10)]
    now = moves(tree)
    chosen = representatives(now, now.pool)
    assert [n.id for n in chosen] == ["c9", "c8", "c7", "c6"]
    assert max(Counter(now.cell(n) for n in chosen).values()) == PER_CELL
    many = [
        node(n, speedup=1.0 + n, plan=plan, sol_fraction=fraction)
        for n, (plan, fraction) in enumerate((plan, fraction) for plan in PLANS for fraction in (0.1, 0.4, 0.9))
    ]
    assert len(representatives(moves(many), many)) == POOL_SIZE


def test_what_is_in_flight_counts_as_a_visit_that_gained_nothing() -> None:
    tree = seeds(1.0, 1.9, 2.0)
    before = upper_bounds(moves(tree), tree, GREEDY)
    assert before["c2"] > before["c1"]
    tree += [flying(3, parents=("c2",)), flying(4, parents=("c2",))]
    after = upper_bounds(moves(tree), tree[:3], GREEDY)
    assert after["c1"] > after["c2"]


def test_a_parents_value_is_the_best_that_came_from_it() -> None:
    tree = [*seeds(1.0, 1.5, 2.0), node(3, Operator.REFINE, parents=("c1",), speedup=4.0)]
    tree += [node(4, Operator.TUNE, BUILTIN, parents=("c3",), speedup=5.0), failed(5, Operator.REFINE, parents=("c2",))]
    bounds = upper_bounds(moves(tree), tree[:3], 0.0)
    assert bounds == {"c0": 0.0, "c1": 1.0, "c2": pytest.approx(0.4306765)}


def stagnant_tree(vain: int) -> list[Node]:
    vains = [node(n, Operator.REFINE, parents=("c2",), speedup=0.9, plan="x") for n in range(5, 5 + vain)]
    return [*seeds(1.0, 1.2, 2.0, 1.3, 1.4), *vains]


def steps(tree: list[Node], levers: Levers) -> list[tuple[str, tuple[str, ...]]]:
    """What is decided under each of two hundred seeds."""
    made = []
    for seed in range(200):
        expansion = Uct(levers).next_expansion(job_view(8, models=("a",), seed=seed), Tree(tree))
        assert expansion is not None
        made.append((str(expansion.operator), expansion.parents))
    return made


def test_after_stagnation_it_broadens() -> None:
    levers = Levers(crossover=False, bandit=True)
    greedy, broad = steps(stagnant_tree(5), levers), steps(stagnant_tree(6), levers)
    large = [sum(operator in LARGE_STEPS for operator, _ in made) for made in (greedy, broad)]
    assert large[1] > 1.5 * large[0]
    from_best = [sum(parents[:1] == ("c2",) for _, parents in made) for made in (greedy, broad)]
    assert from_best[0] > 100
    assert from_best[1] < from_best[0] / 4
    never = Levers(crossover=False, bandit=True, broaden=False)
    assert {parents for _, parents in steps(stagnant_tree(5), never)} == {
        parents for _, parents in steps(stagnant_tree(6), never)
    }


def test_with_an_improvement_it_is_greedy_again() -> None:
    better = node(20, Operator.REWRITE, parents=("c2",), speedup=3.0, plan=PLANS[4])
    made = steps([*stagnant_tree(8), better], Levers(crossover=False))
    stepped = [parents for _, parents in made if parents]
    assert Counter(stepped).most_common(1)[0][0] == ("c20",)


@pytest.mark.parametrize(
    ("lever", "operator"), [("repair", Operator.REPAIR), ("tune", Operator.TUNE), ("crossover", Operator.CROSSOVER)]
)
def test_a_lever_that_is_off_is_not_used(lever: str, operator: Operator) -> None:
    tree = [replace(n, tunable=True) for n in seeds(1.0, 1.2, 2.0)] + [failed(3)]
    assert operator in {made for made, _ in steps(tree, Levers())}
    assert operator not in {made for made, _ in steps(tree, Levers(**{lever: False}))}


def test_all_operators_are_steps_or_start_from_nothing() -> None:
    assert {*STEPS, Operator.SEED, Operator.TRANSLATE, Operator.PORT} == set(Operator)
