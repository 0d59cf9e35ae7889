"""Compiler seeds on a real GPU: `pytest -s tests/gpu/test_compiler_seed.py` on a machine with CUDA (see docs/results).

Values are compared with the reference in float64, times are printed beside torch.compile's and never asserted.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from search.tunables import parse_space, with_values
from worker.builtin import compiler_triton
from worker.builtin.compiler import compiler_seed
from worker.builtin.trace import build_model, call_accepting, load_source, workloads
from worker.profile.gpus import gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # torch.compile's advice
]

ROOT = Path(__file__).parents[2]
LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""The largest |error| / (|truth| + root mean square of the truth)."""


def load(source: str, folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    path = folder / "candidate.py"  # Triton reads kernels back from the file
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"candidate_{folder.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Case:
    """One workload: the reference with redrawn parameters, inputs, and the truth."""

    def __init__(self, problem: dict[str, Any], params: dict[str, Any]) -> None:
        torch.manual_seed(1)
        self.init = call_accepting(problem["get_init_inputs"], params)
        self.reference = build_model(problem, params).cuda()
        for parameter in self.reference.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        given = call_accepting(problem["get_inputs"], params)
        self.inputs = [value.cuda() if isinstance(value, torch.Tensor) else value for value in given]

    def candidate(self, module: Any) -> torch.nn.Module:
        model: torch.nn.Module = module.ModelNew(*self.init).cuda()
        model.load_state_dict(self.reference.state_dict())
        return model

    def truth(self) -> torch.Tensor:
        doubled = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in self.inputs]
        return copy.deepcopy(self.reference).double()(*doubled)  # type: ignore[no-any-return]

    def check(self, model: torch.nn.Module, truth: torch.Tensor) -> None:
        with torch.no_grad():
            found, eager = model(*self.inputs), self.reference(*self.inputs)
        assert (found.shape, found.dtype, found.stride()) == (eager.shape, eager.dtype, eager.stride())
        scale = truth.square().mean().sqrt()
        error = ((found - truth).abs() / (truth.abs() + scale)).max().item()
        assert error < LIMITS[found.dtype], f"error {error:.2e}"

    def times_us(self, **models: Any) -> str:
        from triton.testing import do_bench

        with torch.no_grad():
            parts = []
            for name, model in models.items():
                time_ms = do_bench(lambda model=model: model(*self.inputs), return_mode="median")
                parts.append(f"{name} {1000 * time_ms:.1f} us")
        return ", ".join(parts)


@pytest.mark.parametrize("name", ["softmax", "matmul_bias_gelu", "cross_entropy", "cumsum"])
def test_a_bundled_problem_on_all_its_workloads(name: str, tmp_path: Path) -> None:
    source = (ROOT / "problems" / "suite" / f"{name}.py").read_text()
    problem = load_source(source, name)
    hardware = gpus()[0].hardware
    module = load(compiler_seed(source, name, hardware, "triton"), tmp_path / name)
    for workload in workloads(source, hardware):
        case = Case(problem, dict(workload.params))
        model = case.candidate(module)
        with torch.no_grad():
            case.check(model, case.truth())
        torch._dynamo.reset()
        compiled = torch.compile(case.reference, dynamic=False)
        times = case.times_us(seed=model, compile=compiled, eager=case.reference)
        sys.stdout.write(f"\n{name} {workload.name}: {times}")
        del case, model, compiled
        torch.cuda.empty_cache()


def test_every_configuration_is_right(tmp_path: Path) -> None:
    source = (ROOT / "problems" / "suite" / "rmsnorm_residual.py").read_text()
    problem = load_source(source, "rmsnorm_residual")
    hardware = gpus()[0].hardware
    seed = compiler_seed(source, "rmsnorm_residual", hardware, "triton")
    space = parse_space(seed)
    assert space is not None
    case = Case(problem, dict(workloads(source, hardware)[0].params))
    with torch.no_grad():
        truth = case.truth()
    for index in range(max(len(choices) for choices in space.values.values())):
        values = {name: choices[min(index, len(choices) - 1)] for name, choices in space.values.items()}
        model = case.candidate(load(with_values(seed, values), tmp_path / f"configuration_{index}"))
        case.check(model, truth)
        sys.stdout.write(f"\nconfiguration {index}: {case.times_us(seed=model)}")


def test_inductors_module_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in for kernels that cannot be written out."""
    monkeypatch.setattr(compiler_triton, "_GRIDS", {})
    source = (ROOT / "problems" / "suite" / "layernorm.py").read_text()
    problem = load_source(source, "layernorm")
    hardware = gpus()[0].hardware
    candidate = compiler_seed(source, "layernorm", hardware, "triton")
    assert "_MODULE_0 = _load(" in candidate
    module = load(candidate, tmp_path / "layernorm")
    for workload in workloads(source, hardware)[:2]:
        case = Case(problem, dict(workload.params))
        with torch.no_grad():
            case.check(case.candidate(module), case.truth())
