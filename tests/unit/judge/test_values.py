"""What the first check says of candidates in a real runner, without the rest of a judgement."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.redteam.problems import source_of
from worker.judge.checks import values
from worker.judge.exhibits import Exhibits
from worker.judge.reference.problem import Problem
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.trial import SUBJECT, Trial
from worker.judge.verdict import Fault, Verdict

CANDIDATE = """
import torch
from torch import nn
{top}
class ModelNew(nn.Module):
    def forward(self, x):
        {first}
        return torch.relu(x)
"""
FLUSH = "torch.set_flush_denormal(True)"


@pytest.fixture(scope="module")
def exhibits() -> Exhibits:
    return Exhibits(Problem(source_of("relu"), "relu"), "cpu", "cpu", 7)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(RefereeOptions(tmp_path_factory.mktemp("home"), "cpu"), on_gpu=False)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("top", "first", "refused"),
    [
        ("", "pass", False),
        ("", FLUSH, True),
        (FLUSH, "pass", True),
        ("", f"{FLUSH}; y = torch.relu(x); torch.set_flush_denormal(False)", False),
    ],
)
def test_a_process_left_flushing_to_zero_is_refused(
    exhibits: Exhibits, processes: Processes, top: str, first: str, refused: bool
) -> None:
    with processes.runner() as runner:
        source = CANDIDATE.format(top=top, first=first)
        runner.ask({"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}, 60)
        request = EvaluationRequest("c", source, "relu", source_of("relu"), "cpu", "cpp")
        trial = Trial(runner, request, exhibits, "cpu", random.Random(1), Evaluation("c"))
        try:
            values.check(trial)
        except Fault as fault:
            assert refused, fault.reason
            assert fault.verdict == Verdict.SUSPICIOUS and "flush-to-zero" in fault.reason
        else:
            assert not refused
        finally:
            for bench in trial.benches.values():
                bench.close()
