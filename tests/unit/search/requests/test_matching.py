"""Requests as people write them, and what is understood and proposed. The matcher is deterministic, so this is its
measure: each line a request, the problem that must come first, and whether it is the very thing."""

from __future__ import annotations

import pytest

from problems.catalog import bundled
from search.requests import Match, rank, understand
from search.requests.matching import SURE

EXACT = [
    ("a Triton kernel for RMSNorm with residual in bf16 on H100", "rmsnorm_residual"),
    ("fused residual add + RMSNorm, hidden size 4096, CUDA, H200", "rmsnorm_residual"),
    ("Skip connection followed by root-mean-square normalization", "rmsnorm_residual"),
    ("softmax over rows on my CPU", "softmax"),
    ("row-wise soft-max in C++", "softmax"),
    ("I need a faster layer norm", "layernorm"),
    ("LayerNorm with weight and bias fp16 A100", "layernorm"),
    ("flash attention causal GQA bf16 h100 triton", "attention_causal"),
    ("causal self-attention on an RTX 4090", "attention_causal"),
    ("autoregressive scaled dot product attention", "attention_causal"),
    ("multi-head attention with causal mask and grouped query heads", "attention_causal"),
    ("cross entropy loss for an LLM with vocab=32000", "cross_entropy"),
    ("softmax cross-entropy", "cross_entropy"),
    ("negative log likelihood", "cross_entropy"),
    ("prefix sum along the last dimension", "cumsum"),
    ("cumulative sum, please", "cumsum"),
    ("GEMM with bias and GELU epilogue", "matmul_bias_gelu"),
    ("dense layer with bias and GELU", "matmul_bias_gelu"),
    ("fuse bias, GELU, layer scale and the residual", "bias_gelu_scale_residual"),
    ("embedding gradient with rmsnorm backward", "embedding_grad_rmsnorm_backward"),
    ("Mamba's selective scan", "selective_scan"),
    ("top-k of the logits", "topk"),
    ("ragged softmax", "varlen_softmax"),
    ("an LSTM cell in fp16", "lstm_cell"),
    ("a skinny matmul", "matmul_skinny"),
    ("SwiGLU in bf16", "swiglu"),
    ("rotary embedding of queries and keys", "rope"),
    ("top-p sampling on an H100", "top_p_sampling"),
    ("AdamW for many tensors", "adamw_multi_tensor"),
]
NEAREST = [
    ("rmsnorm", "rmsnorm_residual"),
    ("scaled dot product attention", "attention_causal"),
    ("linear layer followed by gelu", "matmul_bias_gelu"),
    ("matrix multiplication with a bias 4096x4096x4096", "matmul_bias_gelu"),
    ("backward of layernorm", "layernorm"),
    ("layernorm with relu", "layernorm"),
    ("gradient of the embedding table", "embedding_grad_rmsnorm_backward"),
    ("softmax after a pooling layer", "softmax"),
    ("conv2d with relu", "conv_relu_pool"),
]
NOTHING = ["log-softmax", "a poem about kernels", "instance normalization", ""]


def ranked(text: str) -> list[Match]:
    return rank(understand(text), bundled().values())


@pytest.mark.parametrize(("text", "name"), EXACT)
def test_what_a_problem_is_comes_first_and_is_sure(text: str, name: str) -> None:
    first, *others = ranked(text)
    assert (first.problem.name, first.sure, first.lacks, first.adds) == (name, True, (), ())
    assert not any(other.sure for other in others)


@pytest.mark.parametrize(("text", "name"), NEAREST)
def test_the_nearest_comes_first_and_says_how_it_differs(text: str, name: str) -> None:
    first = ranked(text)[0]
    assert first.problem.name == name
    assert first.score < SURE - 0.04, "a margin to what is sure"
    assert first.lacks or first.adds


def test_a_difference_is_named_from_the_requests_side() -> None:
    assert ranked("backward of layernorm")[0].lacks == ("backward",)
    assert ranked("layernorm with relu")[0].lacks == ("relu",)
    assert ranked("rmsnorm")[0].adds == ("residual",)


@pytest.mark.parametrize("text", NOTHING)
def test_what_no_problem_has_is_not_matched(text: str) -> None:
    assert ranked(text) == []


@pytest.mark.parametrize("name", bundled())
def test_each_bundled_problem_is_found_by_its_own_summary_and_by_its_name(name: str) -> None:
    problem = bundled()[name]
    assert ranked(problem.summary)[0].problem.name == name
    assert ranked(name.replace("_", " "))[0].problem.name == name
