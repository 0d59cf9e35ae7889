"""Each reference of each family is recognised as such, for all of its workloads at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.builtin.references import BY_NAME, NUMBER_ARGUMENT, REFERENCES, Reference
from worker.builtin.families import Attention, LayerNorm, Match, Pointwise, RmsNorm, recognise
from worker.builtin.trace import TraceError

PROBLEMS = Path(__file__).parents[3] / "problems" / "suite"


def first(name: str) -> Match:
    return recognise(BY_NAME[name].source, "cpu")[0]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda r: r.name)
def test_reference_is_recognised(reference: Reference) -> None:
    families = [match.family for match in recognise(reference.source, "cpu")]
    assert families[:1] == [reference.family]


@pytest.mark.parametrize(
    ("problem", "family"),
    [
        ("softmax", "softmax"),
        ("layernorm", "layer_norm"),
        ("rmsnorm_residual", "rms_norm"),
        ("bias_gelu_scale_residual", "pointwise"),
        ("matmul_bias_gelu", "matmul"),
        ("cumsum", "scan"),
        ("attention_causal", "attention"),
    ],
)
@pytest.mark.parametrize("hardware", ["cpu", "nvidia-h100"])
def test_bundled_problem_is_recognised(problem: str, family: str, hardware: str) -> None:
    source = (PROBLEMS / f"{problem}.py").read_text()
    assert recognise(source, hardware)[0].family == family


def test_the_bundled_loss_is_recognised_where_no_workload_smooths_its_labels() -> None:
    source = (PROBLEMS / "cross_entropy.py").read_text()
    assert recognise(source, "cpu")[0].family == "cross_entropy"
    assert "cross_entropy" not in {match.family for match in recognise(source, "nvidia-h100")}


def test_a_constant_that_follows_a_shape_is_read_from_it() -> None:
    bindings = first("shift_shape").bindings
    assert isinstance(bindings, Pointwise)
    assert [number.text for number in bindings.program.numbers] == ["math.sqrt(x.shape[-1])"]


def test_a_number_argument_is_told_from_a_constant_that_equals_it() -> None:
    bindings = recognise(NUMBER_ARGUMENT.source, "cpu")[0].bindings
    assert isinstance(bindings, Pointwise)
    assert [number.text for number in bindings.program.numbers] == ["float(s)"]


def test_bindings_of_a_residual_rms_norm() -> None:
    bindings = first("residual_rms_norm").bindings
    assert isinstance(bindings, RmsNorm)
    assert bindings.residual is not None and bindings.weight is not None
    assert (bindings.x.text, bindings.residual.text, bindings.weight.text) == ("x", "r", "self.w")
    assert (bindings.eps.value, bindings.offset, bindings.returns_sum) == (1e-6, 0.0, True)


def test_bindings_of_a_gemma_norm_and_a_norm_over_two_dimensions() -> None:
    gemma, wide = first("gemma_rms_norm").bindings, first("layer_norm_2d").bindings
    assert isinstance(gemma, RmsNorm) and gemma.offset == 1.0
    assert isinstance(wide, LayerNorm) and wide.dims == 2


def test_attention_says_whether_it_is_causal_and_what_masks_it() -> None:
    causal, masked, plain = (first(n).bindings for n in ("attention_by_hand", "attention_masked", "attention_grouped"))
    assert isinstance(causal, Attention) and causal.causal and causal.mask is None and not causal.hidden_is_zero
    assert (
        isinstance(masked, Attention) and not masked.causal and masked.mask is not None and masked.mask.kind == "bool"
    )
    assert isinstance(plain, Attention) and plain.scale.text == "1.0 / math.sqrt(q.shape[-1])"


def test_views_keep_following_the_shape() -> None:
    bindings = first("geglu_packed").bindings
    assert isinstance(bindings, Pointwise)
    assert {operand.text for operand in bindings.program.operands} == {"x.chunk(2, -1)[0]", "x.chunk(2, -1)[1]"}


def test_workloads_that_differ_in_more_than_sizes_match_nothing() -> None:
    source = BY_NAME["swiglu"].source.replace("F.silu(x) * y", "F.silu(x) * y if x.shape[0] > 3 else x - y")
    assert recognise(source, "cpu") == ()


def test_what_is_not_known_is_not_forced_into_a_family() -> None:
    source = BY_NAME["softmax"].source.replace("torch.softmax(x, -1)", "torch.sort(x, dim=-1)[0]")
    assert recognise(source, "cpu") == ()


EIGHT_BIT_FLOATS = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        {body}

def get_inputs():
    return [torch.randn(32, 16).to(torch.{dtype}), torch.randn(16, 16)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    ("body", "family"),
    [
        ("return x.to(y.dtype) @ y", "matmul"),
        ("return x.to(y.dtype) * 2", "pointwise"),
        ("return x.t().contiguous()", "transpose"),
    ],
)
def test_eight_bit_floats_as_inputs_match_nothing(body: str, family: str, dtype: str) -> None:
    assert recognise(EIGHT_BIT_FLOATS.format(body=body, dtype="float16"), "cpu")[0].family == family
    assert recognise(EIGHT_BIT_FLOATS.format(body=body, dtype=dtype), "cpu") == ()


@pytest.mark.parametrize(
    ("body", "family"),
    [
        ("return (y * 2).to(torch.float8_e4m3fn)", "pointwise"),
        ("return torch.softmax(y, -1).to(torch.float8_e5m2)", "softmax"),
        ("return (y @ y).to(torch.float8_e4m3fn)", "matmul"),
        # A recipe drops casts between floats; this one rounds.
        ("return (y * 2).to(torch.float8_e4m3fn).float()", "pointwise"),
        ("return y.to(torch.float8_e4m3fn).float() * 2", "pointwise"),
    ],
)
def test_eight_bit_floats_as_results_or_on_the_way_match_nothing(body: str, family: str) -> None:
    source = EIGHT_BIT_FLOATS.format(body=body, dtype="float32")
    wide = source.replace("float8_e4m3fn", "float16").replace("float8_e5m2", "float16")
    assert recognise(wide, "cpu")[0].family == family
    assert recognise(source, "cpu") == ()


@pytest.mark.parametrize("problem", ["gemm_w8a8_fp8", "rmsnorm_quant_fp8"])
@pytest.mark.parametrize("hardware", ["cpu", "nvidia-h100"])
def test_bundled_problems_of_eight_bit_floats_match_nothing(problem: str, hardware: str) -> None:
    assert recognise((PROBLEMS / f"{problem}.py").read_text(), hardware) == ()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return torch.softmax(y, -1)", "could not be traced"),
        ("x += 1\n        return x", "mutates an input"),
        ("return x[x > 0]", "could not be traced"),
        ("return x + int(x.sum())", "could not be traced"),
    ],
)
def test_forward_that_cannot_be_traced_says_why(body: str, complaint: str) -> None:
    source = BY_NAME["softmax"].source.replace("return torch.softmax(x, -1)", body)
    with pytest.raises(TraceError, match=complaint):
        recognise(source, "cpu")
