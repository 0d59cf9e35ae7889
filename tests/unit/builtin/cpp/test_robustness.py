"""What goes into a C++ recipe may be anything: other types, nothing at all, NaN and infinity, wrong indices."""

from __future__ import annotations

import pytest
import torch

from tests.unit.builtin.cpp.running import candidate_source, cases, load, of
from tests.unit.builtin.references import BY_NAME


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


SPECIAL = {"NaN": 0x7FC00000, "CUDA's NaN": 0x7FFFFFFF, "-NaN": -1} | {
    str(value): int(torch.tensor(value).view(torch.int32)) for value in (float("inf"), float("-inf"), -0.0, 1e-42, 3e38)
}
"""As bits: an exponential that added to those of a NaN made numbers of some."""


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("softmax", "softmax"), ("log_softmax", "softmax"), ("layer_norm_plain", "layer_norm"), ("rms_norm", "rms_norm"),
     ("row_max", "row_reduction"), ("logsumexp", "row_reduction"), ("column_max", "column_reduction"),
     ("cumsum", "scan"), ("activations", "pointwise"), ("more_math", "pointwise"), ("l2_normalize", "rowwise"),
     ("softmax", "rowwise")],
)  # fmt: skip
@pytest.mark.parametrize("bits", SPECIAL.values(), ids=SPECIAL.keys())
def test_one_special_value_leaves_the_same_marks_as_in_eager(name: str, recipe: str, bits: int) -> None:
    case = of(name, recipe, "w1")[0]

    def mark(t: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t.view(-1)[5:6] = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
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
