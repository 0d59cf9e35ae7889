"""FlashInfer Trace and SOL-ExecBench: documents as the two projects document them, and ours, which must run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel, ValidationError

from cli.exchange.definitions import Described, Unexportable, describe
from cli.exchange.solutions import hardware_name, solution, traces
from cli.exchange.trace_models import Definition, Evaluation, Solution, Status, Trace, Workload
from cli.exchange.tracing import trace
from problems.catalog import bundled, outline

GEMM: dict[str, Any] = {
    "name": "gemm_n8_k4",
    "op_type": "gemm",
    "tags": ["status:draft"],
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}, "K": {"type": "const", "value": 4}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "float16"}, "B": {"shape": ["N", "K"], "dtype": "float16"},
               "scale": {"shape": None, "dtype": "float32"}},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
    "reference": "import torch\n\ndef run(A, B, scale):\n    return A @ B.T * scale\n",
}  # fmt: skip
SOL_SOFTMAX: dict[str, Any] = {
    "name": "softmax_d64",
    "axes": {"rows": {"type": "var", "description": None}, "heads": {"type": "const", "value": 2},
             "wide": {"type": "expr", "expression": "heads * 64"}},
    "inputs": {"x": {"shape": ["rows", "wide"], "dtype": "float64"}},
    "outputs": {"y": {"shape": ["rows", "wide"], "dtype": "float64"}},
    "custom_inputs_entrypoint": None,
    "reference": "import torch\n\n@torch.no_grad()\ndef run(x):\n    return torch.softmax(x, -1)\n",
}  # fmt: skip
WORKLOAD = {
    "uuid": "a1b2",
    "axes": {"M": 16},
    "inputs": {"A": {"type": "random"}, "B": {"type": "safetensors", "path": "b.safetensors", "tensor_key": "B"},
               "scale": {"type": "scalar", "value": 0.5}},
}  # fmt: skip
SOLUTION: dict[str, Any] = {
    "name": "gemm_v1",
    "definition": "gemm_n8_k4",
    "author": "somebody",
    "spec": {"language": "triton", "target_hardware": ["NVIDIA_H100"], "entry_point": "main.py::run",
             "dependencies": ["triton >= 2.3"], "destination_passing_style": False},
    "sources": [{"path": "main.py", "content": "def run(A, B, scale): ..."}],
}  # fmt: skip
PASSED = {
    "definition": "gemm_n8_k4",
    "workload": WORKLOAD,
    "solution": "gemm_v1",
    "evaluation": {
        "status": "PASSED",
        "log": "",
        "environment": {"hardware": "NVIDIA_H100", "libs": {"torch": "2.13.0"}},
        "timestamp": "2026-11-22T12:00:00Z",
        "correctness": {"max_relative_error": 1e-5, "max_absolute_error": "NaN"},
        "performance": {"latency_ms": 0.008, "reference_latency_ms": 0.02, "speedup_factor": 2.5},
    },
}
REPORT = json.loads((Path(__file__).parents[3] / "support/showcase/report.json").read_text())


def back(model: Any, document: Any) -> Any:
    return json.loads(model.model_validate(document).model_dump_json())


def test_documents_come_back_as_they_were() -> None:
    assert back(Definition, GEMM) == GEMM
    assert back(Workload, WORKLOAD) == WORKLOAD
    assert back(Solution, SOLUTION) == SOLUTION
    assert back(Trace, PASSED) == PASSED
    only = {"definition": "gemm_n8_k4", "workload": WORKLOAD, "solution": None, "evaluation": None}
    assert back(Trace, only) == only
    sol = back(Definition, SOL_SOFTMAX)
    assert sol["axes"]["wide"] == {"type": "expr", "expression": "heads * 64"}


def unknown(part: Any) -> list[str]:
    """Fields of a document that the types do not have, at any depth."""
    if isinstance(part, BaseModel):
        inside = [name for field in type(part).model_fields for name in unknown(getattr(part, field))]
        return [*(part.model_extra or {}), *inside]
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [name for value in values for name in unknown(value)]


def test_every_field_of_the_documents_is_known() -> None:
    documents = {Definition: [GEMM, SOL_SOFTMAX], Workload: [WORKLOAD], Solution: [SOLUTION], Trace: [PASSED]}
    for model, each in documents.items():
        assert [unknown(model.model_validate(document)) for document in each] == [[]] * len(each)
    assert unknown(Workload.model_validate(WORKLOAD | {"tolerance": 1})) == ["tolerance"]
    cuda = SOLUTION["spec"] | {"binding": "torch", "language": "cuda"}
    assert unknown(Solution.model_validate(SOLUTION | {"spec": cuda, "description": "fast"})) == []


def test_fields_that_are_not_known_here_are_kept() -> None:
    document = WORKLOAD | {"tolerance": {"max_atol": 0.01}}
    assert back(Workload, document) == document


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reference": "def run(A, B): ..."}, "run takes A, B, but the inputs are A, B, scale"),
        ({"reference": "def go(A): ..."}, "no top-level function run"),
        ({"reference": "def run(:"}, "no Python"),
        ({"axes": {"M": {"type": "var"}}}, 'the axis "K"'),
        ({"outputs": {"A": {"shape": ["M"], "dtype": "float16"}}}, "both an input and an output"),
        ({"axes": {**GEMM["axes"], "M": {"type": "some"}}}, "does not match any of the expected tags"),
        ({"inputs": {"A": {"shape": ["M"], "dtype": "float"}}}, "Input should be"),
    ],
)
def test_a_definition_that_contradicts_itself_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Definition.model_validate(GEMM | change)


def test_figures_go_with_the_status() -> None:
    evaluation = {"status": "TIMEOUT", "environment": {"hardware": "CPU"}, "timestamp": "now"}
    assert Evaluation.model_validate(evaluation).status is Status.TIMEOUT
    for wrong in ({"status": "PASSED"}, {"correctness": {"max_relative_error": 0, "max_absolute_error": 0}}):
        with pytest.raises(ValidationError, match="with status"):
            Evaluation.model_validate(evaluation | wrong)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sources": [{"path": "other.py", "content": ""}]}, "in none of the sources"),
        ({"sources": SOLUTION["sources"] * 2}, "the same path"),
        ({"spec": SOLUTION["spec"] | {"languages": ["triton"]}}, "either language"),
        ({"spec": SOLUTION["spec"] | {"entry_point": "main.py"}}, "String should match"),
    ],
)
def test_a_solution_that_cannot_be_built_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Solution.model_validate(SOLUTION | change)


# --- our problems as definitions -------------------------------------------------------------------------------------


def described(name: str, hardware: str = "cpu") -> list[Described]:
    problem = bundled()[name]
    calls = trace(problem.source, name, hardware)
    return describe(calls, problem.source, name, problem.op_family, problem.summary)


def test_axes_are_the_parameters_of_the_workloads() -> None:
    (found,) = described("softmax")
    definition = found.definition
    assert definition.name.startswith("softmax_")
    assert definition.op_type == "softmax"
    assert {name: axis.type for name, axis in definition.axes.items()} == {"rows": "var", "cols": "var"}
    assert definition.inputs["x"].shape == definition.outputs["output"].shape == ["rows", "cols"]
    assert found.workloads["odd"].axes == {"rows": 1021, "cols": 2039}
    assert len({workload.uuid for workload in found.workloads.values()}) == 3
    assert described("softmax")[0].workloads["odd"].uuid == found.workloads["odd"].uuid


def test_types_that_differ_make_definitions_of_their_own() -> None:
    found = described("softmax", "nvidia-h200")
    assert sorted(each.definition.inputs["x"].dtype for each in found) == ["bfloat16", "float16", "float32"]
    assert len({each.definition.name for each in found}) == 3
    assert sorted(name for each in found for name in each.workloads) == [
        "bf16",
        "fp32",
        "odd_fp32",
        "small_bf16",
        "wide_fp16",
    ]


OWN = """
from __future__ import annotations

import torch
from torch import nn

SPEC = {"op_family": "linear", "workloads": [
    {"name": "a", "params": {"rows": 4, "features": 6}},
    {"name": "b", "params": {"rows": 9, "features": 6}},
]}


class Model(nn.Module):
    def __init__(self, features, bias=True):
        super().__init__()
        self.linear = nn.Linear(features, 3, bias=bias)
        self.register_buffer("shift", torch.ones(features))

    def forward(self, x, scale):
        return self.linear(x + self.shift) * scale, x.sum(-1)


def get_inputs(rows, features):
    return [torch.randn(rows, features), 0.5]


def get_init_inputs(features):
    return [features, True]
"""


def own() -> Described:
    (found,) = describe(trace(OWN, "own op", "cpu"), OWN, "own op", "linear")
    return found


def test_state_and_numbers_become_inputs() -> None:
    found = own()
    definition = found.definition
    shapes = {name: spec.shape for name, spec in definition.inputs.items()}
    assert shapes == {
        "x": ["rows", "features"],
        "scale": None,
        "shift": ["features"],
        "linear_weight": ["d3", "features"],
        "linear_bias": ["d3"],
    }
    assert definition.axes["features"].model_dump() == {"type": "const", "value": 6}
    assert {name: spec.shape for name, spec in definition.outputs.items()} == {"output0": ["rows", "d3"],
                                                                              "output1": ["rows"]}  # fmt: skip
    assert found.workloads["b"].axes == {"rows": 9}
    assert found.workloads["b"].model_dump()["inputs"]["scale"] == {"type": "scalar", "value": 0.5}


AWKWARD = """
import torch
from torch import nn

SPEC = {"op_family": "x/y", "workloads": [
    {"name": "../a", "params": {"x": 6, "features": 6}},
    {"name": "../b", "params": {"x": 9, "features": 7}},
]}


class Inner(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.b = nn.Parameter(torch.ones(features))


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.a = Inner(features)
        self.a_b = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * self.a.b + self.a_b


def get_inputs(x, features):
    return [torch.randn(x, features)]


def get_init_inputs(features):
    return [features]
"""


def test_names_are_told_apart_and_make_no_paths() -> None:
    found = describe(trace(AWKWARD, "own/op", "cpu"), AWKWARD, "own/op", "x/y")
    assert [each.definition.op_type for each in found] == ["x_y"] * 2
    assert not any(set("/.") & set(each.definition.name) for each in found)
    for each in found:
        assert each.state == {"a_b": "a_b", "a_b_": "a.b"}
        assert not each.definition.axes.keys() & each.definition.inputs.keys()
    names: dict[str, Any] = {}
    exec(found[0].definition.reference, names)
    x = torch.randn(6, 6)
    order = {"a_b": torch.full((6,), 3.0), "a_b_": torch.full((6,), 2.0)}
    assert torch.equal(names["run"](x, *order.values()), x * 2 + 3)


def test_the_reference_computes_what_the_module_computes() -> None:
    names: dict[str, Any] = {}
    exec(own().definition.reference, names)
    x, scale = torch.randn(4, 6), 0.5
    model = names["Model"](6, True)
    state = model.state_dict()
    with torch.no_grad():
        wanted, total = model(x, scale)
        found, again = names["run"](x, scale, state["shift"], state["linear.weight"], state["linear.bias"])
    assert torch.equal(found, wanted)
    assert torch.equal(again, total)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("return [features, True]", "return [features, torch.nn]"), "no.*module|something other than"),
        (
            ("return [torch.randn(rows, features), 0.5]", "return [torch.randn(rows, features).cfloat(), 0.5]"),
            "complex64",
        ),
        (("def get_inputs", "def run(x): ...\n\n\ndef get_inputs"), "a function called run"),
        (("return self.linear", "raise ValueError('no')\n        return self.linear"), "line 20: workload 'a'"),
    ],
)
def test_what_cannot_be_described_says_why(change: tuple[str, str], says: str) -> None:
    source = OWN.replace(*change)
    assert source != OWN
    with pytest.raises(Unexportable, match=says):
        describe(trace(source, "own", "cpu"), source, "own", "linear")


CANDIDATE = {
    "id": "cand_1",
    "plan": "fused",
    "verdict": "ok",
    "reason": None,
    "evaluated_at": "2026-11-22T12:00:00Z",
    "source": OWN.replace("class Model(", "class ModelNew("),
    "report": REPORT,
}
CPU, GPU = {"hardware": "cpu", "language": "cpp"}, {"hardware": "nvidia-b200", "language": "triton"}


def test_a_solution_runs_on_its_own_and_agrees_with_the_reference(tmp_path: Path) -> None:
    found = own()
    made = solution(CANDIDATE, found, CPU, "flashinfer")
    assert (made.spec.language, made.spec.target_hardware) == ("python", ["CPU"])
    assert not made.spec.destination_passing_style
    for source in made.sources:
        (tmp_path / source.path).write_text(source.content)
    (tmp_path / "reference.py").write_text(found.definition.reference)
    script = (
        "import torch, main, reference\n"
        "given = [torch.randn(4, 6), 2.0, torch.randn(6), torch.randn(3, 6), torch.randn(3)]\n"
        "for _ in range(2):\n"
        "    pairs = list(zip(main.run(*given), reference.run(*given), strict=True))\n"
        "    assert len(pairs) == 2 and all(torch.equal(one, two) for one, two in pairs)\n"
        "    given[3] = torch.randn(3, 6)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{script}"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_other_dialect_names_its_own_languages_and_targets() -> None:
    made = solution(CANDIDATE, own(), GPU, "sol-execbench")
    spec = json.loads(made.model_dump_json())["spec"]
    assert (spec["languages"], spec["target_hardware"]) == (["triton"], ["B200"])
    assert "language" not in spec
    assert solution(CANDIDATE, own(), GPU, "flashinfer").spec.language == "triton"
    cuda = {"hardware": "nvidia-h100", "language": "cuda"}
    assert solution(CANDIDATE, own(), cuda, "sol-execbench").spec.languages == ["pytorch"]
    assert solution(CANDIDATE, own(), cuda, "sol-execbench").spec.target_hardware == ["LOCAL"]
    with pytest.raises(Unexportable, match="for a CPU"):
        solution(CANDIDATE, own(), CPU, "sol-execbench")
    assert hardware_name("nvidia-h200") == "NVIDIA_H200"


def test_a_trace_says_what_the_judge_found() -> None:
    (found,) = described("softmax")
    written = list(traces(CANDIDATE, found, CPU))
    assert [each.workload for each in written] == list(found.workloads.values())
    (row,) = [row for row in REPORT["workloads"] if row["name"] == "odd"]
    evaluation = written[1].evaluation
    assert evaluation is not None and evaluation.performance is not None and evaluation.correctness is not None
    assert evaluation.performance.latency_ms == row["latency_us"] / 1000
    assert evaluation.performance.speedup_factor == row["baselines_us"]["eager"] / row["latency_us"]
    errors = [check["figures"]["error"] for check in REPORT["checks"]
              if check["name"].startswith("odd/") and "error" in check["figures"]]  # fmt: skip
    assert evaluation.correctness.max_relative_error == max(errors)
    assert math.isnan(evaluation.correctness.max_absolute_error)
    assert evaluation.environment.libs["torch"] == REPORT["environment"]["torch"]
    assert json.loads(written[1].model_dump_json())["evaluation"]["correctness"]["max_absolute_error"] == "NaN"


def test_what_was_not_accepted_has_the_status_for_it_and_some_has_no_trace() -> None:
    (found,) = described("softmax")
    checks = [{"name": "odd/tiny/output0", "passed": False, "figures": {"error": 0.5}}]
    wrong = CANDIDATE | {"verdict": "incorrect", "report": {"checks": checks}}
    (only,) = traces(wrong, found, CPU)
    assert only.workload == found.workloads["odd"]
    assert only.evaluation is not None and only.evaluation.correctness is not None
    assert (only.evaluation.status, only.evaluation.correctness.max_relative_error) == ("INCORRECT_NUMERICAL", 0.5)
    unbuilt = CANDIDATE | {"verdict": "build_error", "reason": "line 3", "report": {"log": "error: ..."}}
    assert {each.evaluation.status for each in traces(unbuilt, found, CPU) if each.evaluation} == {"COMPILE_ERROR"}
    for verdict in ("suspicious", "infra_error", None):
        assert list(traces(CANDIDATE | {"verdict": verdict}, found, CPU)) == []
    assert list(traces(CANDIDATE | {"report": REPORT | {"workloads": []}}, found, CPU)) == []


_BYTES = "gemm_w4a16"
"""Its weights are bytes, a type that the format has not."""
_READS_VALUES = "moe_grouped_gemm"
"""It must be run to be traced, and a GPU's sizes take a CPU minutes."""


@pytest.mark.parametrize("name", [name for name in bundled() if not bundled()[name].spec.backward and name != _BYTES])
def test_every_bundled_problem_has_a_definition(name: str) -> None:
    for hardware in ("cpu",) if name == _READS_VALUES else ("cpu", "nvidia-h200"):
        found = described(name, hardware)
        workloads = [workload for each in found for workload in each.workloads]
        assert sorted(workloads) == sorted(each.name for each in bundled()[name].spec.workloads_for(hardware))
        for each in found:
            assert outline(each.definition.reference, name).name == name


def test_bytes_are_no_type_of_the_format() -> None:
    with pytest.raises(Unexportable, match="packed is uint8, which is none of its types"):
        described(_BYTES)
