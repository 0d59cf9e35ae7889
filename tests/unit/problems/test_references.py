"""Every bundled reference runs on its CPU workloads, as written and in float64, the judge's truth."""

from __future__ import annotations

import copy
import inspect
import linecache
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from problems.catalog import Outline, Workload, bundled

CASES = [
    pytest.param(problem, workload, id=f"{problem.name}-{workload.name}")
    for problem in bundled().values()
    for workload in problem.spec.workloads_for("cpu")
]

QUANTISED = {("rmsnorm_quant_fp8", 0), ("silu_mul_quant", 0)}
"""The outputs that are 8-bit floats, by problem and place."""
FIXED: dict[str, set[torch.dtype]] = {
    "gemm_w8a8_fp8": {torch.float8_e4m3fn, torch.float32},  # both factors quantised, with their scales
    "map_id": set(),  # integers alone
    "merge_bucketized_dense": {torch.float32},
    "sparse_inverted_index": set(),
    "triangle_multiplicative_update": {torch.float32},  # as its public competition stores them
}
"""The types of the floating inputs where they do not follow the workload's."""
BESIDE = {"adamw_multi_tensor": {torch.float32}, "top_p_sampling": {torch.float32}}
"""Types beside the workload's: of an optimizer's state, of the numbers that a sample is drawn with."""

IGNORED = -100
"""The target of a row that a loss leaves out."""


def load(problem: Outline) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": problem.name}
    file = f"<{problem.name}>"
    # Triton reads kernels back, those of libraries too.
    linecache.cache[file] = (len(problem.source), None, problem.source.splitlines(keepends=True), file)
    exec(compile(problem.source, file, "exec"), namespace)
    return namespace


def called(function: Callable[..., list[Any]], params: Mapping[str, object]) -> list[Any]:
    accepted = inspect.signature(function).parameters
    return function(**{name: value for name, value in params.items() if name in accepted})


@pytest.mark.parametrize(("problem", "workload"), CASES)
def test_a_reference_agrees_with_itself_in_float64(problem: Outline, workload: Workload) -> None:
    torch.manual_seed(0)
    module = load(problem)
    model = module["Model"](*called(module["get_init_inputs"], workload.params))
    inputs = called(module["get_inputs"], workload.params)
    assert len(inputs) == len(problem.forward_args)
    with torch.no_grad():
        found = model(*inputs)
        truth = copy.deepcopy(model).double()(*(each.double() if each.is_floating_point() else each for each in inputs))
    stored = str(workload.params.get("dtype", "float32"))
    limit = 1e-4 if stored == "float32" else 2e-2
    outputs = zip(*(result if isinstance(result, tuple) else (result,) for result in (found, truth)), strict=True)
    for place, (each, exact) in enumerate(outputs):
        if not each.is_floating_point():
            assert torch.equal(each, exact)
        elif (problem.name, place) in QUANTISED:
            assert each.dtype is exact.dtype is torch.float8_e4m3fn
            assert_on_the_same_grid(each.double(), exact.double())
        else:
            assert each.dtype is getattr(torch, stored)
            assert exact.dtype is torch.float64
            torch.testing.assert_close(each.double(), exact, rtol=limit, atol=limit)


def assert_on_the_same_grid(found: torch.Tensor, truth: torch.Tensor) -> None:
    """A number on the edge between two of e4m3 may become its neighbour, an eighth away or one subnormal; none of
    65,536 and more did, one in a thousand may."""
    torch.testing.assert_close(found, truth, rtol=1 / 8, atol=2**-9)
    assert int((found != truth).sum()) <= found.numel() / 1000


@pytest.mark.parametrize("problem", bundled().values(), ids=bundled())
def test_a_reference_builds_its_parameters_in_the_workloads_type(problem: Outline) -> None:
    module = load(problem)
    for dtype in ("float32", "bfloat16", "float16"):
        model = module["Model"](*called(module["get_init_inputs"], {"dtype": dtype}))
        own = {torch.float32} if problem.name == "triangle_multiplicative_update" else {getattr(torch, dtype)}
        assert {parameter.dtype for parameter in model.parameters()} <= own
        floats = [each for each in called(module["get_inputs"], {"dtype": dtype}) if each.is_floating_point()]
        wanted = FIXED.get(problem.name, {getattr(torch, dtype)}) | BESIDE.get(problem.name, set())
        assert {each.dtype for each in floats} == wanted


@pytest.mark.parametrize("problem", bundled().values(), ids=bundled())
def test_an_index_stays_below_its_declared_bound(problem: Outline) -> None:
    module = load(problem)
    for workload in problem.spec.workloads_for("cpu"):
        inputs = dict(zip(problem.forward_args, called(module["get_inputs"], workload.params), strict=True))
        for name, domain in problem.spec.domains.items():
            limit = domain.limit(workload.params)
            if domain.kind in ("real", "positive", "unit", "index"):  # others are of any type: borders, offsets
                assert (domain.kind == "index") == (not inputs[name].is_floating_point())
            if limit is not None:
                ids = inputs[name].long()
                assert bool((((ids >= 0) | (ids == IGNORED)) & (ids < limit)).all())


def test_attention_is_causal_and_shares_key_heads() -> None:
    module = load(bundled()["attention_causal"])
    q, k, v = called(module["get_inputs"], {"batch": 2, "heads": 6, "kv_heads": 2, "length": 17, "dim": 8})
    found = module["Model"]()(q, k, v)
    truth = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(found, truth)


def test_the_embedding_gradient_is_what_autograd_finds() -> None:
    module = load(bundled()["embedding_grad_rmsnorm_backward"])
    dy, ids, table, weight = called(module["get_inputs"], {"vocab": 50, "hidden": 16, "tokens": 300})
    leaves = table.double().requires_grad_(), weight.double().requires_grad_()
    y = torch.nn.functional.rms_norm(leaves[0][ids], (16,), leaves[1], eps=1e-6)
    y.backward(dy.double())
    found = module["Model"]()(dy.double(), ids, table.double(), weight.double())
    for each, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(each, leaf.grad)
