"""Forged messages from the runner: no crash of the judge, no forged result becomes an ok, no descriptor stays open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.fuzz.__main__ import fuzz
from tests.hostile.fuzz.listeners import true_answer
from tests.hostile.fuzz.messages import framed
from tests.hostile.fuzz.processes import FORGERS, forger, from_processes
from tests.hostile.ground import Ground
from worker.judge.client import Judge, JudgeOptions
from worker.judge.intake import intake
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import Fault
from worker.runner.sandbox import best_level

PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "only", "params": {"rows": 64}}]}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(128))
    def forward(self, x):
        return torch.relu(x + self.bias)

def get_inputs(rows=64):
    return [torch.rand(rows, 128)]

def get_init_inputs():
    return []
"""
HONEST = PROBLEM.replace("class Model(", "class ModelNew(")


def told_well(messages: int, seed: int) -> None:
    tally, left_open = fuzz(messages, seed)
    assert tally.crashes == []
    assert tally.forgeries == []
    assert left_open <= 0, "fewer, where another test's last one was closed meanwhile"
    assert tally.verdicts["answered"] > messages // 20, "the messages never got as far as whoever reads answers"
    assert tally.verdicts["rung"], "no bell was ever answered rightly: nothing was learnt of the others"


def test_forged_messages_are_faults() -> None:
    told_well(1000, seed=1)


@pytest.mark.exhaustive
@pytest.mark.timeout(1500)
def test_a_hundred_thousand_forged_messages_are_faults() -> None:
    told_well(100_000, seed=2)


@pytest.mark.parametrize(
    ("body", "answers"),
    [(b'{"done":{}}', True), (b'{"done":1}', False), (b'{"done":{"a":NaN}}', False), (b"[]", False), (b"", False)],
)
def test_the_oracle_knows_an_answer(body: bytes, answers: bool) -> None:
    assert true_answer(framed(body)) is answers


@pytest.mark.exhaustive
def test_forged_messages_of_real_runners_are_faults(tmp_path: Path) -> None:
    with Ground(best_level(), tmp_path) as ground:
        assert from_processes(ground, 300, seed=3) == []


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with Judge(JudgeOptions(home=tmp_path_factory.mktemp("forgers"), hardware="cpu", eager_only=True)) as running:
        yield running


def request(source: str) -> EvaluationRequest:
    return EvaluationRequest("cand_forger", source, "bias_relu", PROBLEM, "cpu", "cpp", own_kernel_share=0.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORGERS)
def test_a_forger_gets_a_verdict_and_never_an_ok(judge: Judge, name: str) -> None:
    report = judge.evaluate(request(forger(name, 128)))
    assert report["verdict"] not in ("ok", "infra_error"), report["reason"]


@pytest.mark.exhaustive
def test_the_next_honest_candidate_is_accepted(judge: Judge) -> None:
    assert judge.evaluate(request(forger("escapes", 128)))["verdict"] == "launch_error"
    report = judge.evaluate(request(HONEST))
    assert report["verdict"] == "ok", report["reason"]


@pytest.mark.parametrize("source", ["x = " + "1 + " * 400 + "1", "x = " + "[" * 90 + "]" * 90 + ".a" * 400, "# \ud800"])
def test_a_source_that_would_crash_its_readers_is_a_build_error(source: str) -> None:
    with pytest.raises(Fault) as refused:
        intake(source + "\n")
    assert refused.value.verdict == "build_error"
