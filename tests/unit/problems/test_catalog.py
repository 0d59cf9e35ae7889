"""The catalog reads problem files without running them and says, with the line, what is wrong with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from problems.catalog import (
    MAX_SOURCE_BYTES,
    Domain,
    Precision,
    ProblemError,
    SeatSpec,
    Workload,
    bundled,
    outline,
    source_hash,
)

PLAIN = """\
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
    def forward(self, x, index):
        return x[index]

def get_inputs(rows=8):
    return [torch.randn(rows), torch.randint(rows, (3,))]

def get_init_inputs():
    return [4]
"""
SPEC_LINE = len(PLAIN.splitlines()) + 1


def with_spec(text: str) -> str:
    return PLAIN + text


def test_the_first_eight_are_bundled() -> None:
    wanted = {
        "softmax",
        "layernorm",
        "rmsnorm_residual",
        "bias_gelu_scale_residual",
        "matmul_bias_gelu",
        "cross_entropy",
        "cumsum",
        "attention_causal",
    }
    assert wanted <= set(bundled())


@pytest.mark.parametrize("name", bundled())
def test_a_bundled_problem_says_what_it_is_and_has_workloads_for_both_kinds_of_hardware(name: str) -> None:
    problem = bundled()[name]
    assert problem.summary
    assert problem.op_family != "other"
    assert set(problem.spec.domains) == set(problem.forward_args)
    assert {"small", "odd", "large"} <= {workload.name for workload in problem.spec.workloads_for("cpu")}
    assert len(problem.spec.workloads_for("nvidia-h100")) >= 3
    loose = {"triangle_multiplicative_update": Precision("bfloat16", tf32=True)}  # as its public competition allows
    assert problem.spec.precision == loose.get(name, Precision("float32", tf32=False))


def test_a_kernelbench_file_loads_unchanged() -> None:
    problem = outline(PLAIN, "gather")
    assert problem.spec.workloads == (Workload("default", "any", {}),)
    assert problem.spec.workloads_for("cpu") == problem.spec.workloads_for("nvidia-h200") == problem.spec.workloads
    assert (problem.name, problem.op_family, problem.forward_args) == ("gather", "other", ("x", "index"))
    assert problem.source_hash == source_hash(PLAIN) != source_hash(PLAIN + "\n")


def test_a_spec_is_read_without_being_run(tmp_path: Path) -> None:
    text = (
        'SPEC: dict = {"summary": "gathers", "op_family": "gather", "backward": True,\n'
        ' "workloads": [{"name": "a", "for": "gpu", "params": {"rows": 9}}, {"name": "b"}],\n'
        ' "domains": {"x": "positive", "index": {"index": "rows"}},\n'
        ' "precision": {"compute": "bfloat16", "tf32": True}}\n'
        f'open({str(tmp_path / "ran")!r}, "w")\n'
    )
    spec = outline(with_spec(text), "gather").spec
    assert spec.workloads == (Workload("a", "gpu", {"rows": 9}), Workload("b", "any", {}))
    assert spec.workloads_for("cpu") == (Workload("b", "any", {}),)
    assert spec.domains == {"x": Domain("positive"), "index": Domain("index", "rows")}
    assert spec.domains["index"].limit({"rows": 9}) == 9
    assert spec.domains["index"].limit({}) is None
    assert Domain("index", 50).limit({"rows": 9}) == 50
    assert spec.precision == Precision("bfloat16", tf32=True)
    assert spec.backward
    assert not (tmp_path / "ran").exists()


def test_no_workload_for_the_hardware_is_an_error_that_says_what_to_add() -> None:
    spec = outline(with_spec('SPEC = {"workloads": [{"name": "a", "for": "gpu"}]}'), "x").spec
    with pytest.raises(ProblemError, match='with "for": "cpu" or "any"'):
        spec.workloads_for("cpu")


@pytest.mark.parametrize("name", ["Model", "get_inputs", "get_init_inputs"])
def test_a_missing_part_is_named(name: str) -> None:
    with pytest.raises(ProblemError, match=rf"line {SPEC_LINE - 1}: {name} is missing: add `"):
        outline(PLAIN.replace(f" {name}(", f" other_{name}("), "x")


def test_a_part_inside_a_function_does_not_count() -> None:
    with pytest.raises(ProblemError, match="Model is missing"):
        outline(PLAIN.replace("class Model", "def f():\n  class Model").replace("\n    ", "\n      "), "x")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "line 1: "),
        ("x = 1\ny = (\n", "line 2: "),
        ("x = '\0'\n", "line 1: "),
        ("(" * 5000 + ")" * 5000, "line 1: "),
        ("-" * 200_000 + "1", "line 1: "),
        ("#" * (MAX_SOURCE_BYTES + 1), f"at most {MAX_SOURCE_BYTES}"),
        ("x = '\ud800'\n", "line 1: "),
    ],
)
def test_a_file_that_is_no_python_is_refused_with_its_line(source: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        outline(source, "x")


@pytest.mark.parametrize(
    ("spec", "line", "message"),
    [
        ('SPEC = {"colour": 1}', 0, 'SPEC has no key "colour": it knows summary, op_family'),
        ("SPEC = [1]", 0, "SPEC is a dict"),
        ("SPEC = make()", 0, r"must be a literal: write the value itself in place of `make\(\)`"),
        ('SPEC = {\n "summary": "a" + "b"}', 1, "in place of `'a' \\+ 'b'`"),
        ('SPEC = {"workloads": [\n {"name": "a",\n  "params": {"rows": 1 << 20}}]}', 2, "in place of `1 << 20`"),
        ('SPEC = {**{"summary": "x"}}', 0, "keys are strings"),
        ('SPEC = {"summary": "x",\n "summary": "y"}', 1, 'says "summary" twice'),
        ('SPEC = {"summary": 3}', 0, r'SPEC\["summary"\] is a string, not 3'),
        ('SPEC = {"op_family": " "}', 0, "is empty: write at least a word"),
        ('SPEC = {"backward": 1}', 0, "is True or False, not 1"),
        ('SPEC = {"workloads": []}', 0, "is empty: give one"),
        ('SPEC = {"workloads": {"name": "a"}}', 0, r'SPEC\["workloads"\] is a list'),
        ('SPEC = {"workloads": [{"name": "a"},\n {"name": "a"}]}', 1, 'two workloads are called "a"'),
        ('SPEC = {"workloads": [{"params": {}}]}', 0, r'SPEC\["workloads"\]\[0\] has no name'),
        ('SPEC = {"workloads": [{"name": "a",\n "for": "tpu"}]}', 1, "write one of cpu, gpu, any"),
        ('SPEC = {"workloads": [{"name": "a", "params": {"rows": b"x"}}]}', 0, "parameters are numbers, strings"),
        ('SPEC = {"workloads": [{"name": "a", "params": {"row": 3}}]}', 0, 'gives "row", but neither get_inputs nor'),
        ('SPEC = {"domains": {\n "y": "real"}}', 1, 'given for "y", but forward takes x, index'),
        (
            'SPEC = {"domains": {"x": "any"}}',
            0,
            "write one of real, positive, unit, index, ascending, strictly_ascending, shuffled, fixed",
        ),
        ('SPEC = {"domains": {"x": {}}}', 0, r'write \{"index": "classes"\}'),
        ('SPEC = {"domains": {"x": {"index": 0}}}', 0, "an index is bounded by"),
        ('SPEC = {"domains": {"x": {"index": True}}}', 0, "an index is bounded by"),
        ('SPEC = {"domains": {"x": {"index": "rows"}}}', 0, 'bounded by "rows", but no workload gives that'),
        ('SPEC = {"precision": {"compute": "int8"}}', 0, "write one of float64, float32"),
        ('SPEC = {"precision": {"tf32": "no"}}', 0, "is True or False"),
        ("def SPEC(): pass", 0, "SPEC is a module-level dict"),
        ("SPEC: dict", 0, "SPEC is a module-level dict"),
    ],
)
def test_a_bad_spec_is_refused_with_its_line_and_what_to_write(spec: str, line: int, message: str) -> None:
    with pytest.raises(ProblemError, match=f"^line {SPEC_LINE + line}: .*{message}"):
        outline(with_spec(spec), "x")


def test_a_workload_may_say_whether_it_trains() -> None:
    text = 'SPEC = {"backward": True, "workloads": [{"name": "a"}, {"name": "b", "backward": False}]}'
    spec = outline(with_spec(text), "x").spec
    assert [spec.trains(workload) for workload in spec.workloads] == [True, False]
    assert [workload.backward for workload in spec.workloads] == [None, False]
    with pytest.raises(ProblemError, match=r'SPEC\["workloads"\]\[0\]\["backward"\] is True or False, not 1'):
        outline(with_spec('SPEC = {"workloads": [{"name": "a", "backward": 1}]}'), "x")


def test_a_seat_is_read_and_is_none_when_left_out() -> None:
    seated = outline(with_spec('SPEC = {"backward": True, "seat": {"kind": "layer", "workload": "default"}}'), "x")
    assert seated.spec.seat == SeatSpec("layer", "default")
    assert outline(PLAIN, "x").spec.seat is None


@pytest.mark.parametrize(
    ("seat", "message"),
    [
        ('{"kind": "chair"}', "write one of embedding_gradient, layer, loss, none"),
        ('{"workload": "default"}', "has no kind"),
        ('{"kind": "layer", "workload": "huge"}', 'names the workload "huge"'),
        ('{"kind": "layer", "at": 3}', 'no key "at"'),
        ('{"kind": "loss"}', 'add "backward": True'),
    ],
)
def test_a_bad_seat_is_refused_with_what_to_write(seat: str, message: str) -> None:
    with pytest.raises(ProblemError) as refused:
        outline(with_spec(f'SPEC = {{"seat": {seat}}}'), "x")
    assert message in str(refused.value)
    assert f"line {SPEC_LINE}" in str(refused.value)


def test_an_embedding_gradient_is_a_backward_already() -> None:
    with pytest.raises(ProblemError, match="is a backward already"):
        outline(with_spec('SPEC = {"backward": True, "seat": {"kind": "embedding_gradient"}}'), "x")


def test_what_else_a_user_could_call_is_a_class_of_the_file() -> None:
    fused = PLAIN + "\n\nclass Fused(Model):\n    pass\n"
    found = outline(fused + 'SPEC = {"library": {"fused": "Fused"}}\n', "x")
    assert found.spec.library == {"fused": "Fused"}
    assert outline(PLAIN, "x").spec.library == {}


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ('{"fused": "Fused"}', "the class Fused, which this file does not define: add `class Fused"),
        ('{"fused": "Model"}', 'the library op "fused" is the class Model'),
        ('{"Fused op": "Fused"}', "a name is small letters"),
        ('{"fused": 3}', "is a string"),
        ('["Fused"]', "is a dict"),
    ],
)
def test_a_bad_library_is_refused_with_its_line_and_what_to_write(library: str, message: str) -> None:
    with pytest.raises(ProblemError, match=f"^line {SPEC_LINE}: ") as refused:
        outline(with_spec(f'SPEC = {{"library": {library}}}'), "x")
    assert message in str(refused.value)


def test_an_argument_that_no_workload_gives_is_refused() -> None:
    source = PLAIN.replace("rows=8", "rows")
    with pytest.raises(ProblemError, match='get_inputs needs "rows", which workload "default" does not give'):
        outline(source, "x")
    assert outline(source + 'SPEC = {"workloads": [{"name": "a", "params": {"rows": 3}}]}', "x").spec.workloads


def test_functions_that_take_anything_and_models_made_by_a_call_are_left_to_the_judge() -> None:
    source = PLAIN.replace("rows=8", "**params") + 'SPEC = {"workloads": [{"name": "a", "params": {"rows": 3}}]}'
    assert outline(source, "x").spec.workloads[0].params == {"rows": 3}
    made = PLAIN.replace("class Model(", "class Other(") + "Model = make(Other)\n"
    assert outline(made, "x").forward_args == ()


def test_lists_in_params_become_tuples() -> None:
    spec = outline(
        PLAIN.replace("rows=8", "rows=8, shape=()")
        + 'SPEC = {"workloads": [{"name": "a", "params": {"shape": [1, [2, -3.5, None]]}}]}',
        "x",
    ).spec
    assert spec.workloads[0].params == {"shape": (1, (2, -3.5, None))}


def test_the_catalog_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from problems.catalog import bundled; assert len(bundled()) >= 8"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
