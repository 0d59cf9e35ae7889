"""Each C++ recipe computes what its reference does, for odd shapes, strides and magnitudes, as exactly as eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from problems.catalog import bundled
from search import tunables
from tests.unit.builtin.cpp.running import (
    Case,
    assert_honest,
    candidate_source,
    cases,
    far_from_zero,
    large,
    load,
    offers,
    strided,
)
from tests.unit.builtin.references import BY_NAME, REFERENCES, Reference
from worker.builtin.cpp import RECIPES, write_candidate
from worker.languages.cpp import LANGUAGE

PROBLEMS = Path(__file__).parents[4] / "problems"
BUNDLED = sorted(bundled())


def of(name: str, recipe: str, only: str = "", values: dict[str, int] | None = None) -> list[Case]:
    source = BY_NAME[name].source
    return cases(source, load(candidate_source(source, recipe, **(values or {}))), [only] if only else ())


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


@pytest.mark.parametrize("name", ["softmax", "layer_norm_2d", "residual_rms_norm", "logsumexp"])
def test_the_general_row_recipe_does_what_special_ones_do(name: str) -> None:
    for case in of(name, "rowwise"):
        assert_honest(case)
        assert_honest(case, far_from_zero)


@pytest.mark.parametrize("problem", BUNDLED)
def test_bundled_problem_has_an_honest_recipe(problem: str) -> None:
    source = (PROBLEMS / f"{problem}.py").read_text()
    match, recipe = offers(source)[0]
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


# -- what goes in may be anything --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("bias_gelu", "pointwise"),
        ("softmax", "softmax"),
        ("residual_rms_norm", "rms_norm"),
        ("linear_gelu", "matmul"),
        ("sdpa_causal", "attention"),
        ("cumsum", "scan"),
    ],
)
def test_half_precision_is_computed_in_float32_and_rounded_once(name: str, recipe: str) -> None:
    case = of(name, recipe, "w1")[0]
    halves = [t.bfloat16() for t in case.inputs]
    exact = [t.double() for t in halves]
    with torch.no_grad():
        found = case.new.bfloat16()(*halves)
        truth = case.model.bfloat16().double()(*exact)
    first, wanted = (found, truth) if isinstance(found, torch.Tensor) else (found[0], truth[0])
    assert first.dtype == torch.bfloat16
    assert torch.allclose(first.double(), wanted, rtol=2**-8, atol=2**-8 * float(wanted.abs().mean()))


def test_float64_is_refused_and_not_rounded_quietly() -> None:
    case = of("softmax", "softmax", "w0")[0]
    with pytest.raises(TypeError, match="computes in float32"):
        case.new(case.inputs[0].double())


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("bias_gelu", "pointwise"), ("softmax", "softmax"), ("residual_rms_norm", "rms_norm"), ("cumsum", "scan"),
     ("row_sum", "row_reduction"), ("cross_entropy_ignored", "cross_entropy"), ("linear_gelu", "matmul")],
)  # fmt: skip
def test_an_empty_batch_is_no_problem(name: str, recipe: str) -> None:
    case = of(name, recipe, "w0")[0]
    empty = [t[:0] for t in case.inputs]
    with torch.no_grad():
        found, wanted = case.new(*empty), case.model(*empty)
    first, expected = (found, wanted) if isinstance(found, torch.Tensor) else (found[0], wanted[0])
    assert torch.equal(first, expected)


SPECIAL = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 1e-42, 3e38, -3e38])


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("softmax", "softmax"), ("log_softmax", "softmax"), ("layer_norm_plain", "layer_norm"), ("rms_norm", "rms_norm"),
     ("row_max", "row_reduction"), ("logsumexp", "row_reduction"), ("column_max", "column_reduction"),
     ("cumsum", "scan"), ("activations", "pointwise"), ("more_math", "pointwise"), ("l2_normalize", "rowwise"),
     ("softmax", "rowwise")],
)  # fmt: skip
@pytest.mark.parametrize("value", SPECIAL.tolist(), ids=str)
def test_one_special_value_leaves_the_same_marks_as_in_eager(name: str, recipe: str, value: float) -> None:
    case = of(name, recipe, "w1")[0]

    def mark(t: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t.view(-1)[5] = value
        return t

    for found, eager, _ in zip(*case.outputs(mark), strict=True):
        assert torch.equal(found.isnan(), eager.isnan())
        assert torch.equal(found.isinf(), eager.isinf())


def test_rows_without_a_finite_maximum() -> None:
    x = torch.zeros(3, 37)
    x[0], x[1, 3:], x[2, :5] = float("-inf"), float("-inf"), float("inf")
    for name in ("softmax", "log_softmax", "logsumexp"):
        case = of(name, "row_reduction" if name == "logsumexp" else "softmax", "w1")[0]
        assert torch.allclose(case.new(x), case.model(x), equal_nan=True)


def test_a_query_that_sees_no_key_is_zero_or_nan_as_in_the_reference() -> None:
    case = of("attention_masked", "attention", "w1")[0]
    q, k, v, mask = case.inputs
    mask[2] = False
    assert torch.equal(case.new(q, k, v, mask)[:, :, 2], torch.zeros_like(v[:, :, 2]))
    bias = of("attention_bias", "attention", "w1")[0]
    q, k, v, shift = bias.inputs
    shift[:, 2] = float("-inf")
    assert torch.equal(bias.new(q, k, v, shift).isnan(), bias.model(q, k, v, shift).isnan())


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_indices_out_of_range_are_refused(wrong: int) -> None:
    case = of("cross_entropy", "cross_entropy", "w0")[0]
    x, target = case.inputs
    target[1] = wrong
    with pytest.raises(IndexError, match="out of bounds"):
        case.new(x, target)
    table = of("embedding", "embedding", "w0")[0]
    table.inputs[0][0, 0] = wrong
    with pytest.raises(IndexError, match="out of range"):
        table.new(table.inputs[0])


def test_ignored_targets_do_not_count() -> None:
    source = BY_NAME["cross_entropy"].source
    for case in cases(source, load(candidate_source(source, "cross_entropy"))):
        x, target = case.inputs
        target[::2] = -100
        assert torch.allclose(case.new(x, target), case.model(x, target), equal_nan=True)


def test_a_view_of_the_reference_is_not_copied() -> None:
    source = candidate_source(BY_NAME["geglu_packed"].source, "pointwise")
    assert "x.chunk(2, -1)[0]" in source and "x0.stride(0)" in source


def test_the_constructor_keeps_what_it_needs_and_nothing_else() -> None:
    source = BY_NAME["bias_gelu"].source.replace("class Model", "SIZE = 1\nUNUSED = 2\n\nclass Model")
    source = source.replace("torch.randn(n))", "torch.randn(n) * SIZE)")
    candidate = candidate_source(source, "pointwise")
    assert "SIZE = 1" in candidate and "UNUSED" not in candidate
    assert "get_inputs" not in candidate and "F.gelu" not in candidate
