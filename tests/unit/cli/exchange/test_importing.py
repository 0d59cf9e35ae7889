"""Problems of other suites: KernelBench folders that are read and never run, and definitions that become files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cli.exchange.kernelbench import Entry, entries, job_body
from cli.exchange.problem_file import ProblemFile, Unimportable, problem_file
from cli.exchange.trace_models import Definition, Workload
from cli.service import UnusableInput
from problems.catalog import outline
from tests.unit.cli.exchange.test_traces import GEMM, SOL_SOFTMAX

RELU = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A suite with two good problems, several bad ones, and files that are none."""
    files = {
        "KernelBench/level1/19_ReLU.py": RELU,
        "KernelBench/level2/3_Fused op (v2).py": RELU,
        "KernelBench/level1/2_Broken.py": "class Model(:",
        "KernelBench/level1/3_Lacking.py": RELU.replace("def get_inputs", "def inputs"),
        "KernelBench/level1/4_NoForward.py": RELU.replace("def forward", "def backward"),
        "KernelBench/level1/5_NoClass.py": "Model = 3\n" + RELU.replace("class Model", "class Other"),
        "KernelBench/level1/__init__.py": "",
        "scripts/generate.py": "raise SystemExit('nobody runs this')",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "KernelBench/level1/6_Latin.py").write_bytes(b"# \xe9\n")
    return tmp_path


def test_each_file_is_checked_and_says_what_is_wrong_with_it(folder: Path) -> None:
    found = {entry.name: entry for entry in entries(folder)}
    assert list(found) == [
        "level1_2_Broken",
        "level1_3_Lacking",
        "level1_4_NoForward",
        "level1_5_NoClass",
        "level1_6_Latin",
        "level1_19_ReLU",
        "level2_3_Fused_op__v2",
    ]
    faults = {name: entry.fault or "" for name, entry in found.items()}
    assert faults["level1_19_ReLU"] == faults["level2_3_Fused_op__v2"] == ""
    assert faults["level1_2_Broken"].startswith("line 1: ")
    assert "get_inputs is missing" in faults["level1_3_Lacking"]
    assert faults["level1_4_NoForward"].startswith("line 5: Model has no forward")
    assert "Model is no class" in faults["level1_5_NoClass"]
    assert "no UTF-8 text at byte 2" in faults["level1_6_Latin"]
    assert (found["level1_19_ReLU"].level, found["level1_19_ReLU"].task) == (1, 19)


def test_nothing_of_a_file_is_run(folder: Path) -> None:
    trap = folder / "ran"
    (folder / "KernelBench/level1/7_Trap.py").write_text(RELU + f"\nopen({str(trap)!r}, 'w')\n")
    (only,) = entries(folder, "7_*")
    assert only.fault is None
    assert not trap.exists()


@pytest.mark.parametrize(
    ("select", "count"), [("level2/*", 1), ("19_ReLU.py", 1), ("*ReLU", 1), ("level1/*", 6), (None, 7)]
)
def test_a_part_of_it(folder: Path, select: str | None, count: int) -> None:
    assert len(entries(folder, select)) == count
    if select != "level2/*":
        level = entries(folder / "KernelBench/level1", select)
        assert {entry.level for entry in level} == {1}


def test_a_folder_without_problems_is_one_sentence(folder: Path) -> None:
    for place, select, says in (("scripts", None, "no levelN"), ("nowhere", None, "no folder"), (".", "x", "none of")):
        with pytest.raises(UnusableInput, match=says):
            entries(folder / place, select)


def test_a_job_is_known_by_all_that_it_asks_for() -> None:
    entry = Entry(Path("level1/19_ReLU.py"), 1, 19, "level1_19_ReLU", RELU, None)
    common: dict[str, Any] = {"target": {"hardware": "cpu", "language": "cpp"}, "labels": {"team": "a"}}
    first = job_body(entry, common)
    assert first == job_body(entry, common)
    digest = first["labels"].pop("kernelbench.digest")
    assert len(digest) == 32
    assert first["labels"] == {"suite": "kernelbench", "kernelbench.level": "1", "kernelbench.task": "19", "team": "a"}
    others = [job_body(entry, common | {"priority": 1}), job_body(entry, {"target": common["target"]})]
    assert digest not in {each["labels"]["kernelbench.digest"] for each in others}


# --- definitions ----------------------------------------------------------------------------------------------------


def workload(uuid: str, axes: dict[str, int], **inputs: dict[str, Any]) -> Workload:
    return Workload.model_validate({"uuid": uuid, "axes": axes, "inputs": inputs})


RANDOM = {"type": "random"}
HALF = {"type": "scalar", "value": 0.5}


def gemm(*sizes: int, most: int = 8, **changes: Any) -> ProblemFile:
    definition = Definition.model_validate(GEMM | changes)
    given = [workload(f"id{size}", {"M": size}, A=RANDOM, B=RANDOM, scale=HALF) for size in sizes]
    return problem_file(definition, given, most)


def test_a_definition_becomes_a_problem_that_computes_the_same() -> None:
    made = gemm(16, 3, description="C = A @ B.T\nscaled")
    read = outline(made.source, made.name)
    assert read.spec.op_family == "gemm"
    assert read.summary == "C = A @ B.T scaled"
    assert [(each.name, each.params) for each in read.spec.workloads] == [
        ("M3", {"M": 3, "scale": 0.5}),
        ("M16", {"M": 16, "scale": 0.5}),
    ]
    names: dict[str, Any] = {}
    exec(made.source, names)
    inputs = names["get_inputs"](M=3, scale=0.5)
    assert [value.shape for value in inputs[:2]] == [(3, 4), (8, 4)]
    assert {value.dtype for value in inputs[:2]} == {torch.float16}
    assert torch.equal(names["Model"](*names["get_init_inputs"]())(*inputs), inputs[0] @ inputs[1].T * 0.5)


def test_an_axis_may_be_an_expression_and_the_reference_may_begin_with_a_future() -> None:
    reference = "from __future__ import annotations\n" + SOL_SOFTMAX["reference"]
    definition = Definition.model_validate(SOL_SOFTMAX | {"reference": reference})
    made = problem_file(definition, [workload("one", {"rows": 3}, x=RANDOM)])
    names: dict[str, Any] = {}
    exec(made.source, names)
    (x,) = names["get_inputs"](rows=3)
    assert (x.shape, x.dtype) == ((3, 128), torch.float64)


def test_workloads_are_spread_over_the_sizes() -> None:
    made = gemm(*range(1, 101), most=4)
    assert made.workloads == ("M1", "M34", "M67", "M100")
    assert len(made.left_out) == 96
    assert set(made.left_out.values()) == {"one of more than 4"}
    assert gemm(7, most=1).workloads == ("M7",)


def test_a_workload_that_cannot_be_said_is_left_out_with_the_reason() -> None:
    definition = Definition.model_validate(GEMM)
    stored = {"type": "safetensors", "path": "b.safetensors", "tensor_key": "B"}
    given = [
        workload("good", {"M": 4}, A=RANDOM, B=RANDOM, scale=HALF),
        workload("again", {"M": 4}, A=RANDOM, B=RANDOM, scale=HALF),
        workload("stored", {"M": 8}, A=RANDOM, B=stored, scale=HALF),
        workload("sizeless", {}, A=RANDOM, B=RANDOM, scale=HALF),
        workload("lacking", {"M": 9}, A=RANDOM, B=RANDOM),
        workload("number", {"M": 10}, A=HALF, B=RANDOM, scale=HALF),
        workload("drawn", {"M": 11}, A=RANDOM, B=RANDOM, scale=RANDOM),
    ]
    assert problem_file(definition, given).left_out == {
        "again": "another workload has the same sizes",
        "stored": 'the values of "B" come from a file',
        "sizeless": 'it gives no size to "M"',
        "lacking": 'it has no input "scale"',
        "number": '"A" is a tensor, and it gives a number',
        "drawn": '"scale" is a number, and it gives none',
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reference": GEMM["reference"] + "\nclass Model: ...\n"}, "its reference defines Model"),
        ({"axes": {**GEMM["axes"], "E": {"type": "expr", "expression": "__import__('os')"}}}, "arithmetic"),
        ({"axes": {**GEMM["axes"], "E": {"type": "expr", "expression": "Z * 2"}}}, "arithmetic"),
        ({"axes": {**GEMM["axes"], "a-b": {"type": "var"}}}, "no name that Python knows"),
        ({"axes": {**GEMM["axes"], "A": {"type": "var"}}}, "both an axis and an input"),
        ({"inputs": {**GEMM["inputs"], "B": {"shape": ["N"], "dtype": "int32"}}}, "which int32 values"),
    ],
)
def test_what_cannot_become_a_problem_says_why(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Unimportable, match=says):
        gemm(4, **changes)


def test_variable_axes_need_workloads_and_constant_ones_do_not() -> None:
    with pytest.raises(Unimportable, match="M, scale have no values"):
        problem_file(Definition.model_validate(GEMM), [])
    constant = GEMM | {"axes": GEMM["axes"] | {"M": {"type": "const", "value": 2}},
                       "inputs": {name: GEMM["inputs"][name] for name in "AB"},
                       "reference": "def run(A, B):\n    return A @ B.T\n"}  # fmt: skip
    assert problem_file(Definition.model_validate(constant), []).workloads == ("default",)
