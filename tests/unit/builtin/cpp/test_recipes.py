"""Each C++ recipe computes what its reference does, for odd shapes, strides and magnitudes, as exactly as eager."""

from __future__ import annotations

import pytest
import torch

from problems.catalog import bundled
from search import tunables
from tests.unit.builtin.cpp.running import (
    assert_honest,
    candidate_source,
    cases,
    far_from_zero,
    large,
    load,
    of,
    offers,
    strided,
)
from tests.unit.builtin.references import BY_NAME, NUMBER_ARGUMENT, RECOGNISED, REFERENCES, Reference
from worker.builtin.cpp import RECIPES, write_candidate
from worker.builtin.trace import TraceError
from worker.languages.cpp import LANGUAGE

UNSMOOTHED = "cross_entropy"
"""One of its workloads for a GPU smooths labels, which no recipe does; none of those for a CPU."""


def test_there_are_at_least_twelve_recipes_with_names_of_their_own() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES) >= 12


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda r: r.name)
def test_recipe_computes_what_its_reference_does(reference: Reference) -> None:
    match, recipe = offers(reference.source)[0]
    assert match.family == reference.family
    for case in cases(reference.source, load(write_candidate(recipe, match, reference.source))):
        assert_honest(case)
        assert_honest(case, strided)
        assert_honest(case, far_from_zero)
        assert_honest(case, large)


def test_a_number_argument_is_used_and_not_burnt_in() -> None:
    source = NUMBER_ARGUMENT.source
    for case in cases(source, load(candidate_source(source, "pointwise"))):
        assert torch.allclose(case.new(case.inputs[0], 3.0), case.inputs[0] * 3.0 + 2.0)


@pytest.mark.parametrize("name", ["softmax", "layer_norm_2d", "residual_rms_norm", "logsumexp"])
def test_the_general_row_recipe_does_what_special_ones_do(name: str) -> None:
    for case in of(name, "rowwise"):
        assert_honest(case)
        assert_honest(case, far_from_zero)


@pytest.mark.parametrize("problem", bundled())
def test_bundled_problem_that_is_recognised_has_an_honest_recipe(problem: str) -> None:
    source = bundled()[problem].source
    try:
        offered = offers(source)
    except TraceError:
        offered = ()
    assert bool(offered) == (problem in {*RECOGNISED, UNSMOOTHED})
    if not offered:
        return
    match, recipe = offered[0]
    for case in cases(source, load(write_candidate(recipe, match, source)), ["small", "odd"]):
        assert_honest(case)


OTHER_CHOICES = [
    ("bias_gelu", "pointwise", {"THREADS": 1, "WIDTH": 256, "UNROLL": 2, "BLOCK": 1024, "STREAM": 1, "PREFETCH": 0}),
    ("masked", "pointwise", {"WIDTH": 512, "STREAM": 1, "GRAIN": 4096}),
    ("softmax", "softmax", {"THREADS": 1, "WIDTH": 256, "UNROLL": 4, "STREAM": 0, "AHEAD": 0, "CHUNK": 256}),
    ("layer_norm", "layer_norm", {"WIDTH": 256, "STREAM": 1, "CHUNK": 256}),
    ("linear_gelu", "matmul", {"WIDTH": 256, "MR": 4, "NV": 1, "KC": 128, "MC": 24}),
    ("attention_by_hand", "attention", {"WIDTH": 256, "MR": 4, "NV": 2, "BQ": 24, "BK": 64}),
    ("cumsum", "scan", {"ROWS_AT_ONCE": 2, "THREADS": 1}),
    ("column_mean", "column_reduction", {"WIDE": 64, "CHUNK": 32}),
]


@pytest.mark.parametrize(("name", "recipe", "values"), OTHER_CHOICES, ids=lambda v: v if isinstance(v, str) else "")
def test_other_values_of_the_tunables_compute_the_same(name: str, recipe: str, values: dict[str, int]) -> None:
    for case in of(name, recipe, values=values):
        assert_honest(case)
        assert_honest(case, strided)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_tunables_can_be_read_and_flags_are_allowed(recipe: object, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = next(r for r in REFERENCES for _, found in offers(r.source) if found is recipe)
    match, found = next(pair for pair in offers(reference.source) if pair[1] is recipe)
    source = write_candidate(found, match, reference.source)
    space = tunables.read_space(source)
    assert space is not None
    assert {"THREADS", "WIDTH"} <= set(space.values)
    flags: list[tuple[str, ...]] = []
    monkeypatch.setattr("worker.runner.kernelwright.load_cpp", lambda _source, flags_: flags.append(flags_))
    load(source.replace("flags=(", "flags_=("))
    assert LANGUAGE.check_flags(flags[0]) == flags[0]


def test_a_view_of_the_reference_is_not_copied() -> None:
    source = candidate_source(BY_NAME["geglu_packed"].source, "pointwise")
    assert "x.chunk(2, -1)[0]" in source and "x0.stride(0)" in source


def test_the_constructor_keeps_what_it_needs_and_nothing_else() -> None:
    source = BY_NAME["bias_gelu"].source.replace("class Model", "SIZE = 1\nUNUSED = 2\n\nclass Model")
    source = source.replace("torch.randn(n))", "torch.randn(n) * SIZE)")
    candidate = candidate_source(source, "pointwise")
    assert "SIZE = 1" in candidate and "UNUSED" not in candidate
    assert "get_inputs" not in candidate and "F.gelu" not in candidate
