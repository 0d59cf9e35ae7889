"""Inductor's Triton kernels as candidates, without a GPU: right in the interpreter, built ahead of time for an H100.

The code is Inductor's for an H100 that is not there; `tests/gpu/test_compiler_seed.py` runs it on a real one.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from search.tunables import parse_space
from tests.unit.builtin.references import BY_NAME, forward, make
from worker.builtin.compiler import NoCompilerSeed, compiler_seed
from worker.builtin.compiler_capture import capture
from worker.builtin.compiler_pretend import gpu_to_compile_for
from worker.builtin.compiler_triton import TritonKernels
from worker.builtin.compiler_wrapper import parse_wrapper
from worker.builtin.trace import load_source, workloads

ROOT = Path(__file__).parents[3]

# Both modes are for a whole process. Arguments: mode, then (reference, candidate) files.
_PROGRAM = """
import copy, importlib.util, json, sys
from pathlib import Path
import torch
from worker.builtin.trace import build_model, call_accepting, load_source, workloads
from worker.runner import triton_interpret, triton_record

mode, *files = sys.argv[1:]
if mode == "interpret":
    triton_interpret.use_interpreter()

def run(reference, candidate, compare):
    source = Path(reference).read_text()
    problem = load_source(source)
    spec = importlib.util.spec_from_file_location(Path(candidate).stem, candidate)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for workload in workloads(source, "cpu" if compare else "nvidia-h100"):
        params = dict(workload.params)
        torch.manual_seed(1)
        theirs = build_model(problem, params)
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter)
        ours = module.ModelNew(*call_accepting(problem["get_init_inputs"], params))
        ours.load_state_dict(theirs.state_dict())
        inputs = call_accepting(problem["get_inputs"], params)
        found = ours(*copy.deepcopy(inputs))
        if compare:
            torch.testing.assert_close(found, theirs(*inputs), rtol=2e-5, atol=2e-5)
            torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))

if mode == "interpret":
    for reference, candidate in zip(files[::2], files[1::2], strict=True):
        run(reference, candidate, True)
        print(Path(candidate).stem)
else:
    with triton_record.recording("sm_90a") as record:
        for reference, candidate in zip(files[::2], files[1::2], strict=True):
            run(reference, candidate, False)
    print(json.dumps(record.report()))
"""


def run(mode: str, pairs: Sequence[tuple[str, str, str]], folder: Path) -> str:
    """The program's output for (name, reference, candidate) sources."""
    files = []
    for name, reference, candidate in pairs:
        for kind, text in (("reference", reference), (name, candidate)):
            files.append(folder / f"{kind}_{name}.py" if kind == "reference" else folder / f"{name}.py")
            files[-1].write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder / "triton")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, mode, *map(str, files)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.exhaustive
def test_kernels_of_every_kind_are_right_in_the_interpreter(tmp_path: Path) -> None:
    # Pointwise, reductions (looped, persistent, Welford), a scan with its own function, a library call, buffers that
    # are written, kernels that work in place.
    names = ["bias_gelu", "softmax", "layer_norm", "cumsum", "cross_entropy", "linear_gelu", "rope", "batch_norm"]
    pairs = [(n, BY_NAME[n].source, compiler_seed(BY_NAME[n].source, n, "cpu", "triton")) for n in names]
    assert run("interpret", pairs, tmp_path).split() == names


@pytest.mark.exhaustive
def test_kernels_for_large_workloads_build_for_an_h100(tmp_path: Path) -> None:
    source = (ROOT / "problems" / "suite" / "cross_entropy.py").read_text()
    candidate = compiler_seed(source, "cross_entropy", "nvidia-h100", "triton")
    small = source.replace("torch.randn(rows, classes)", "torch.empty(rows, classes)")  # values do not matter here
    report = json.loads(run("record", [("cross_entropy", small, candidate)], tmp_path))
    assert report["error"] is None
    assert report["launches"] == 12
    assert {kernel["name"] for kernel in report["kernels"]} == set(kernels_of(candidate))


def kernels_of(candidate: str) -> list[str]:
    functions = [node for node in ast.parse(candidate).body if isinstance(node, ast.FunctionDef)]
    starts = ("red_", "per_", "poi_")
    return [
        f.name for f in functions if f.decorator_list and f.name.startswith(starts) and "triton_helper" not in f.name
    ]


def test_what_inductors_autotuner_would_try_is_tunable() -> None:
    source = (ROOT / "problems" / "suite" / "softmax.py").read_text()
    candidate = compiler_seed(source, "softmax", "nvidia-h100", "triton")
    space = parse_space(candidate)
    assert space is not None
    assert list(space.values) == [f"CONFIG_{name.upper()}" for name in kernels_of(candidate)]
    assert all(len(choices) > 1 for choices in space.values.values())
    assert set(space.defaults.values()) == {0}


def test_the_candidate_needs_nothing_of_inductor() -> None:
    candidate = compiler_seed(BY_NAME["layer_norm"].source, "layer_norm", "nvidia-h100", "triton")
    modules = {node.module for node in ast.walk(ast.parse(candidate)) if isinstance(node, ast.ImportFrom)}
    assert modules == {"torch", "triton.language.extra"}
    assert "inductor" not in candidate.replace('"""Inductor', "").lower().replace("that inductor would try", "")


def test_pretending_leaves_no_trace() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from torch._dynamo.device_interface import get_interface_for_device
    from torch.utils._triton import has_triton

    compiler_seed(BY_NAME["swiglu"].source, "swiglu", "nvidia-h100", "triton")
    assert not get_interface_for_device("cuda").is_available()
    assert not has_triton()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.cuda.get_device_properties(0)


@pytest.mark.parametrize("name", ["mm", "more_math"])
def test_what_the_interpreter_cannot_run_or_no_kernel_does_is_no_seed(name: str) -> None:
    with pytest.raises(NoCompilerSeed, match=r"adds no kernel|libdevice\.pow"):
        compiler_seed(BY_NAME[name].source, name, "cpu", "triton")


def test_a_module_that_cannot_be_rewritten_is_called_as_it_is() -> None:
    """On the CPU, where Inductor's own module can be run: the way is the same."""
    reference = make(
        "both", "pointwise", forward("return x + 1, x * y", "x, y"), "torch.randn(b, 8), torch.randn(8)", "b", (4,)
    )
    namespace = load_source(reference.source)
    captured = capture(namespace, workloads(reference.source, "cpu")[0], torch.device("cpu"), dynamic=False)
    wrapper = parse_wrapper(captured.code)
    kernels = TritonKernels(interpreted=False)
    plain = kernels.instead(wrapper, captured.code, {"arg0_1": "x", "arg1_1": "y"}, captured.returns)
    assert plain is not None
    scope: dict[str, Any] = {}
    exec(f"{kernels.code()}\ndef call(x, y):\n    {plain.lines[0]}", scope)
    x, y = torch.randn(4, 8), torch.randn(8)
    torch.testing.assert_close(scope["call"](x, y), (x + 1, x * y))
    assert TritonKernels(interpreted=True).instead(wrapper, captured.code, {}, "tensor") is None


def test_an_unknown_grid_falls_back_to_inductors_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from worker.builtin import compiler_triton

    monkeypatch.delitem(compiler_triton._GRIDS, "Grid1D")
    source = BY_NAME["swiglu"].source
    candidate = compiler_seed(source, "swiglu", "nvidia-h100", "triton")
    assert not kernels_of(candidate)
    assert "_MODULE_0 = _load(" in candidate
    assert "return _MODULE_0.call([x, y])[0]" in candidate
    with pytest.raises(NoCompilerSeed, match="is launched on a Grid1D"):
        compiler_seed(source, "swiglu", "cpu", "triton")


def test_the_gpu_that_is_compiled_for() -> None:
    with gpu_to_compile_for() as device:
        assert device == torch.device("cuda:0")
