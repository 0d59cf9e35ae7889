"""Inductor's C++ kernels as candidates: right on every workload and for shapes nobody listed, and refusing the rest."""

from __future__ import annotations

import ast
import copy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.builtin.references import BY_NAME, Reference, forward, make, module
from worker.builtin.compiler import NoCompilerSeed, compiler_seed
from worker.builtin.trace import build_model, call_accepting, load_source, workloads
from worker.languages.cache import BuildCache
from worker.runner import kernelwright

PROBLEMS = Path(__file__).parents[3] / "problems" / "suite"
BUNDLED = ("softmax", "rmsnorm_residual", "bias_gelu_scale_residual", "matmul_bias_gelu", "cross_entropy")
SAMPLE = ("rmsnorm_residual", "matmul_bias_gelu")


@pytest.fixture(autouse=True)
def loader(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setitem(sys.modules, "kernelwright", kernelwright)
    yield


def loaded(source: str) -> types.ModuleType:
    candidate = types.ModuleType("candidate")
    exec(compile(source, "candidate.py", "exec"), candidate.__dict__)
    return candidate


def pair(problem: dict[str, Any], candidate: types.ModuleType, params: dict[str, Any]) -> tuple[Any, Any]:
    """The reference with its parameters redrawn, and the candidate with the same."""
    reference = build_model(problem, params)
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter)
    init = call_accepting(problem["get_init_inputs"], params)
    model = candidate.ModelNew(*init)
    model.load_state_dict(reference.state_dict())
    return reference, model


def in_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.exhaustive) for name in BUNDLED]
)
def test_bundled_problem_on_all_its_workloads(name: str) -> None:
    source = (PROBLEMS / f"{name}.py").read_text()
    problem = load_source(source, name)
    candidate = loaded(compiler_seed(source, name, "cpu", "cpp"))
    for workload in workloads(source, "cpu"):
        params = dict(workload.params)
        torch.manual_seed(1)
        reference, model = pair(problem, candidate, params)
        inputs = call_accepting(problem["get_inputs"], params)
        out, eager = model(*inputs), reference(*inputs)
        truth = reference.double()(*map(in_double, inputs))
        assert (out.shape, out.dtype, out.stride()) == (eager.shape, eager.dtype, eager.stride())
        scale = truth.square().mean().sqrt()
        assert ((out - truth).abs() <= 1e-5 * (truth.abs() + scale)).all(), workload.name


def test_the_candidate_needs_nothing_of_inductor() -> None:
    source = compiler_seed(BY_NAME["layer_norm"].source, "layer_norm", "cpu", "cpp")
    imported = {
        alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names
    }
    assert imported == {"math", "torch"}
    assert "_inductor" not in source.replace("inductor_cpu_integer_div_error", "")


def test_one_kernel_serves_shapes_that_no_workload_has_and_odd_layouts() -> None:
    source = make(
        "scale", "pointwise", forward("return torch.softmax(x * 2, -1)"), "torch.randn(b, n)", "b, n", (8, 64)
    )
    candidate = loaded(compiler_seed(source.source, "scale", "cpu", "cpp"))
    model = candidate.ModelNew()
    for x in (torch.randn(5, 33), torch.randn(100, 17), torch.randn(33, 6).t(), torch.randn(9, 80)[:, ::2]):
        torch.testing.assert_close(model(x), torch.softmax(x * 2, -1))
    x = torch.randn(5, 33)
    x[0, 0], x[1, 1] = float("nan"), float("-inf")
    torch.testing.assert_close(model(x), torch.softmax(x * 2, -1), equal_nan=True)


def test_inputs_that_nothing_was_compiled_for_are_refused() -> None:
    model = loaded(compiler_seed(BY_NAME["column_scale"].source, "column_scale", "cpu", "cpp")).ModelNew()
    for x in (torch.randn(4, 4).double(), torch.randn(4), torch.randn(1, 64)):
        with pytest.raises(NotImplementedError, match="compiled for other"):
            model(x, torch.ones(x.shape[0], 1))


def test_buffers_are_updated_and_numbered_children_found() -> None:
    reference = make(
        "blocks",
        "pointwise",
        module(
            "self.net = nn.Sequential(nn.Linear(n, n), nn.BatchNorm1d(n), nn.ReLU())", "return self.net(x) + s", "x, s"
        ),
        "torch.randn(b, n), 0.5",
        "b, n",
        (16, 24),
        init="n",
    )
    problem = load_source(reference.source)
    candidate = loaded(compiler_seed(reference.source, "blocks", "cpu", "cpp"))
    theirs, ours = pair(problem, candidate, {"b": 16, "n": 24})
    x = torch.randn(16, 24)
    torch.testing.assert_close(ours(x, 0.5), theirs(x, 0.5), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.net[1].running_var, theirs.net[1].running_var)
    with pytest.raises(NotImplementedError):
        ours(x, 0.25)  # the number is in the code


def test_several_results_keep_their_container() -> None:
    reference = make("both", "pointwise", forward("return [x + 1, x.sum(-1)]"), "torch.randn(b, n)", "b, n", (4, 32))
    model = loaded(compiler_seed(reference.source, "both", "cpu", "cpp")).ModelNew()
    x = torch.randn(4, 32)
    results = model(x)
    assert isinstance(results, list)
    torch.testing.assert_close(results, [x + 1, x.sum(-1)])


def pointwise(name: str, text: str, inputs: str = "torch.randn(b)") -> Reference:
    return make(name, "pointwise", forward(f"return {text}"), inputs, "b", (8,))


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (BY_NAME["mm"], "adds none"),
        (pointwise("table", "x + torch.tensor([1.0, 2.0])", "torch.randn(b, 2)"), "neither passed in nor in the state"),
        (pointwise("lists", "x[0] + 1", "[torch.randn(b)]"), "nested arguments"),
        (pointwise("dicts", "{'y': x + 1}"), "something else than tensors"),
        (pointwise("values", "x[x > 0] + 1"), "If statement|[Dd]ynamic"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_cannot_stand_alone_is_no_seed(reference: Reference, reason: str) -> None:
    with pytest.raises(NoCompilerSeed, match=reason):
        compiler_seed(reference.source, reference.name, "cpu", "cpp")


def test_workloads_that_a_call_cannot_tell_apart_are_no_seed() -> None:
    reference = make(
        "epsilon",
        "pointwise",
        module("self.e = 0.5 if n == 32 else 2.0", "return x * self.e + torch.tanh(x)"),
        "torch.randn(8, 16)",
        "n",
        (32,),
        (64,),
        init="n",
    )
    with pytest.raises(NoCompilerSeed, match="w1 and w0 differ in what no input shows"):
        compiler_seed(reference.source, "epsilon", "cpu", "cpp")


@pytest.mark.parametrize(("hardware", "language"), [("nvidia-h100", "cuda"), ("nvidia-h100", "cpp")])
def test_there_are_no_seeds_for_other_languages(hardware: str, language: str) -> None:
    with pytest.raises(NoCompilerSeed, match=f"no {language} for {hardware}"):
        compiler_seed(BY_NAME["softmax"].source, "softmax", hardware, language)


def test_a_reference_that_does_not_run_is_no_seed() -> None:
    with pytest.raises(NoCompilerSeed, match="ZeroDivisionError"):
        compiler_seed("1 / 0", "broken", "cpu", "cpp")


def test_the_confined_build_finds_torchs_headers(tmp_path: Path) -> None:
    built: list[tuple[str, Path]] = []
    cache = BuildCache(tmp_path / "builds", timeout_s=280)

    def build(language: str, source: str, flags: Any) -> Path:
        built.append((source, cache.build(language, source, flags).path))
        return built[-1][1]

    reference = BY_NAME["column_scale"]  # its tanh calls into torch's library
    kernelwright._set_builder(build)
    try:
        candidate = loaded(compiler_seed(reference.source, reference.name, "cpu", "cpp"))
    finally:
        kernelwright._set_builder(None)
    assert "#include <torch/csrc/inductor/cpp_prefix.h>" in built[0][0]
    problem = load_source(reference.source)
    theirs, ours = pair(problem, candidate, {"b": 4, "n": 64})
    inputs = problem["get_inputs"](4, 64)
    torch.testing.assert_close(ours(*copy.deepcopy(inputs)), theirs(*inputs))
