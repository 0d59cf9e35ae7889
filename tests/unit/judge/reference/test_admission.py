"""What an admission test says: of sound problems nothing, of flawed ones what is wrong and who shares it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.judge.reference.admission import admit, main
from worker.judge.reference.findings import ADMITTED, REFUSED, WARNED, Admission
from worker.judge.reference.problem import Problem

FILE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {arguments}):
        return {result}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


def source(result: str, arguments: str = "x", inputs: str = "torch.randn(64, 128)", init: str = "pass") -> str:
    return FILE.format(result=result, arguments=arguments, inputs=inputs, init=init)


def tried(*given: str, **more: str) -> Admission:
    return admit(Problem(source(*given, **more), "tried"), "cpu", "cpu")


def test_a_sound_problem_is_admitted_and_its_domains_are_shown() -> None:
    found = tried("torch.log(x) @ y", "x, y", "torch.rand(64, 128) + 0.1, torch.randn(128, 32)")
    assert found.verdict == ADMITTED, found.lines()
    assert found.domains is not None
    assert {name: domain.kind for name, domain in found.domains.items()} == {"x": "positive", "y": "real"}
    assert len(found.informative) >= 5
    assert any(family.sees_precision for family in found.families)
    assert found.warnings == () and found.notes == ()
    assert json.loads(json.dumps(found.to_json()))["verdict"] == "admitted"


@pytest.mark.parametrize(
    "result",
    [
        "torch.clamp(torch.clamp(x, max=0.0), 0.0, 1.0)",  # always 0
        "(x.amax(1, keepdim=True) - x.amax(1, keepdim=True).mean(1, keepdim=True))",
    ],
)
def test_an_output_that_is_always_the_same_is_refused(result: str) -> None:
    found = tried(result)
    assert found.verdict == REFUSED
    assert found.reason.startswith("0 of ") and "zeros" in found.reason
    assert any("L2/23" in warning for warning in found.warnings)
    assert '"x" has no visible effect on the output' in found.warnings


def test_an_input_without_effect_is_named() -> None:
    found = tried("torch.relu(x) + 0 * y", "x, y", "torch.randn(64, 128), torch.randn(64, 128)")
    assert found.verdict == WARNED
    assert '"y" has no visible effect on the output' in found.warnings
    assert '"x" has no visible effect on the output' not in found.warnings


def test_an_input_that_is_written_into_and_not_returned_is_named() -> None:
    written = tried("torch.relu(x.add_(y))", "x, y", "torch.randn(64, 128), torch.randn(64, 128)")
    assert written.verdict == WARNED
    assert 'the reference writes into "x", which is not judged: return it as well' in written.warnings
    returned = tried("x.add_(y)", "x, y", "torch.randn(64, 128), torch.randn(64, 128)")
    assert returned.verdict == ADMITTED, returned.lines()


def test_an_output_of_several_that_may_be_zeros_is_named() -> None:
    found = tried("x * 2, x - x")
    assert found.verdict == WARNED
    assert "zeros would pass for output1 in every family" in found.warnings


def test_a_family_in_which_zeros_pass_is_vacuous_for_them() -> None:
    found = tried("(x > 1000.0).float()")  # only the families with large values show anything
    zeros = [family.name for family in found.families if "zeros" in family.passing]
    assert "normal" in zeros and "integers" in zeros
    assert any(text.startswith(f"zeros would pass in {len(zeros)} of") for text in found.warnings)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"result": "torch.softmax(x, 1)", "inputs": "torch.rand(2, 40000)"}, "L1/23"),
        ({"result": "torch.relu(x)", "inputs": "torch.rand(64, 128)"}, "only positive values"),
        ({"result": "x.mean()", "inputs": "torch.rand(500, 4000)"}, "L1/94"),
        ({"result": "self.norm(x)", "init": "self.norm = nn.LayerNorm(128)"}, "all ones or all zeros"),
    ],
)
def test_flaws_that_the_judge_makes_good_are_notes(given: dict[str, str], note: str) -> None:
    found = tried(**given)
    assert any(note in text for text in found.notes), found.lines()
    assert found.verdict in (ADMITTED, WARNED)


def test_dropout_is_refused_with_its_line_and_its_relatives() -> None:
    found = tried("self.drop(x)", init="self.drop = nn.Dropout(0.2)")
    assert found.verdict == REFUSED
    assert found.reason.startswith("line 10: `self.drop(x)`: the reference is random")
    assert "L2/66" in found.notes[0]


def test_a_reference_that_fails_or_does_not_fit_is_refused_with_its_reason() -> None:
    assert "line 10: forward failed" in tried("x @ x").reason
    assert "does not fit cpu" in tried("x * 2", inputs="torch.rand(1 << 21, 1 << 21)").reason


def test_indices_alone_have_families_of_their_own() -> None:
    found = tried("self.table(ids)", "ids", "torch.randint(50, (400,))", "self.table = nn.Embedding(50, 16)")
    assert found.verdict == ADMITTED, found.lines()
    assert [family.name for family in found.families] == ["zipf", "uniform", "duplicates", "edges"]


def test_one_percent_of_the_rows_does_not_pass_for_a_mean_of_the_judges_values() -> None:
    found = tried("F.cross_entropy(x, t)", "x, t", "torch.rand(1000, 50), torch.randint(50, (1000,))")
    assert found.verdict == ADMITTED, found.lines()
    assert not any("1 %" in mutant for family in found.families for mutant in family.passing)


def test_the_program_prints_lines_and_says_by_its_status_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "doubled.py"
    path.write_text(source("x * 2"))
    monkeypatch.setattr("sys.argv", ["admission", str(path)])
    assert main() == 0
    assert "doubled on cpu: admitted\n  argument x: real (any number)" in capsys.readouterr().out
    path.write_text("import torch\n")
    assert main() == 1
    assert "Model is missing" in capsys.readouterr().err
