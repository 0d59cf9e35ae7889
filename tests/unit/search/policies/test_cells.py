"""Which cell a kernel is in, from its plan, its lineage and its fraction of the speed of light."""

from __future__ import annotations

import pytest

from search.policies.cells import Bottleneck, Cell, Family, bottleneck_of, cell_of, directed_family, family_of
from search.prompts import angles
from search.tree import Tree
from search.types import Operator, ProposerKind
from tests.unit.search.policies.landscapes import node


@pytest.mark.parametrize(
    ("plan", "family"),
    [
        ("Inductor's own kernels for the reference, made to stand alone", Family.COMPILER),
        ("Use tl.dot on 64x64 tiles", Family.TENSOR_CORE),
        ("A persistent kernel that walks over tiles", Family.PERSISTENT),
        ("Split-K: partial sums, then a second launch", Family.SPLIT),
        ("One pass per row with an online maximum", Family.ONE_PASS),
        ("Vectorised loads of 16 bytes", Family.VECTORISED),
        ("Blocks that fit the cache", Family.BLOCKED),
    ],
)
def test_a_plan_names_its_family(plan: str, family: Family) -> None:
    made = node(1, proposer=ProposerKind.BUILTIN, plan=plan)
    assert family_of(Tree([made]), made, "triton") == family


def test_a_plan_that_names_none_is_of_the_family_that_was_asked_for() -> None:
    asked, built_in = node(3, plan="make it fast"), node(4, proposer=ProposerKind.BUILTIN, plan="make it fast")
    tree = Tree([asked, built_in])
    assert family_of(tree, asked, "cpp") == directed_family("cpp", 3) == Family.BLOCKED
    assert family_of(tree, built_in, "cpp") == Family.OTHER


@pytest.mark.parametrize(("language", "count"), [("cpp", len(angles.CPU)), ("cuda", len(angles.GPU))])
def test_every_direction_of_the_prompts_has_a_family(language: str, count: int) -> None:
    assert len({directed_family(language, ordinal) for ordinal in range(count)}) == count
    assert angles.angle(language, 1) == (angles.CPU if language == "cpp" else angles.GPU)[1]


def test_small_steps_stay_in_the_family_and_large_ones_begin_one() -> None:
    seed = node(0, plan="one pass")
    refined = node(1, Operator.REFINE, parents=("c0",), plan="wider vectors, in tiles")
    tuned = node(2, Operator.TUNE, parents=("c1",), plan="tune: BLOCK=4")
    rewritten = node(3, Operator.REWRITE, parents=("c2",), plan="split the rows")
    tree = Tree([seed, refined, tuned, rewritten])
    families = [family_of(tree, made, "cpp") for made in tree.nodes]
    assert families == [Family.ONE_PASS, Family.ONE_PASS, Family.ONE_PASS, Family.SPLIT]


@pytest.mark.parametrize(
    ("fraction", "bottleneck"),
    [
        (None, Bottleneck.UNKNOWN),
        (0.05, Bottleneck.FAR_FROM_ROOF),
        (0.2, Bottleneck.BELOW_ROOF),
        (0.6, Bottleneck.NEAR_ROOF),
        (1.3, Bottleneck.NEAR_ROOF),
    ],
)
def test_without_a_profile_the_bottleneck_is_how_far_the_roof_is(
    fraction: float | None, bottleneck: Bottleneck
) -> None:
    made = node(0, plan="one pass", sol_fraction=fraction)
    assert bottleneck_of(made) == bottleneck
    assert cell_of(Tree([made]), made, "cpp") == Cell(bottleneck, Family.ONE_PASS)


@pytest.mark.parametrize("found", ["memory", "compute", "latency", "overhead"])
def test_a_profile_says_better_than_the_clock_what_the_bottleneck_is(found: str) -> None:
    assert bottleneck_of(node(0, sol_fraction=0.05, bottleneck=found)) == found


def test_the_word_of_a_profile_that_is_no_class_does_not_count() -> None:
    assert bottleneck_of(node(0, sol_fraction=0.05, bottleneck="near_roof")) == Bottleneck.FAR_FROM_ROOF
    assert bottleneck_of(node(0, sol_fraction=0.05, bottleneck="the moon")) == Bottleneck.FAR_FROM_ROOF
