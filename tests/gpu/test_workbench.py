"""On a device: what the judge writes into an arena is there before the runner reads it, however busy the device is; and
benches that share an arena each find their own there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worker.judge.exhibits import Exhibits
from worker.judge.reference.problem import Problem
from worker.judge.runners.bench import Workbench
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.trial import SUBJECT
from worker.runner import memory

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROBLEM = """
import torch
from torch import nn
SPEC = {"workloads": [{"name": "only", "params": {"rows": 64}}]}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512))
    def forward(self, x):
        return x * self.weight
def get_inputs(rows=64):
    return [torch.randn(rows, 512)]
def get_init_inputs():
    return []
"""

_A_SECOND = 2_000_000_000
"""Clock cycles."""


def test_a_model_is_made_of_the_parameters_that_were_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = memory.create

    def created_while_busy(nbytes: int, device: str) -> memory.Arena:
        arena = create(nbytes, device)
        torch.cuda._sleep(_A_SECOND)
        return arena

    exhibit = Exhibits(Problem(PROBLEM, "scaled"), "nvidia-h100", "cuda:0", 5).workloads[0]
    processes = Processes(RefereeOptions(home=tmp_path, hardware="nvidia-h100"), on_gpu=True)
    try:
        with processes.runner() as runner:
            source = PROBLEM.replace("class Model(", "class ModelNew(")
            runner.ask({"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}, 150)
            monkeypatch.setattr(memory, "create", created_while_busy)
            bench = Workbench(runner, exhibit.instance, exhibit.cases, "cuda:0", 1)
            bench.construct(SUBJECT, 60)
            bench.write(0, 0)
            (found,) = bench.run(SUBJECT, 0, 60)
            bench.close()
    finally:
        processes.close()
    assert exhibit.cases[0].judge((found,))[0].passed


def test_benches_share_an_arena(tmp_path: Path) -> None:
    many = PROBLEM.replace("}]}", '}, {"name": "many", "params": {"rows": 70_000}}]}', 1)
    exhibits = Exhibits(Problem(many, "scaled"), "nvidia-h100", "cuda:0", 5)
    processes = Processes(RefereeOptions(home=tmp_path, hardware="nvidia-h100"), on_gpu=True)
    workshop = exhibits.workshop()
    try:
        with processes.runner() as runner:
            source = PROBLEM.replace("class Model(", "class ModelNew(")
            runner.ask({"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}, 150)
            benches = []
            for each in exhibits.workloads:
                benches.append(Workbench(runner, each.instance, each.cases, "cuda:0", each.slots, workshop=workshop))
            for bench in (*benches, *benches):
                bench.construct(SUBJECT, 60)
                bench.write(0, 1)
                (found,) = bench.run(SUBJECT, 0, 60)
                assert bench.cases[1].judge((found,))[0].passed
                assert not bench.overrun()
                assert bench.changed_inputs(0) == []
    finally:
        workshop.close()
        processes.close()
