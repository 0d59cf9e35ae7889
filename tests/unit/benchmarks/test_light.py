"""The speed of light of the suite's workloads: counted right, and the page is what is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.record.light import PEAKS, Peaks, Work, _row, work_of
from problems.catalog import bundled
from worker.judge.reference.problem import Problem

PAGE = Path(__file__).parents[3] / "docs" / "suite.md"
PRODUCT = """
import torch
from torch import nn

SPEC = {"precision": {"compute": "COMPUTE"}, "backward": BACKWARD}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32, 16))

    def forward(self, x):
        return x @ self.weight

def get_inputs():
    return [torch.randn(8, 32)]

def get_init_inputs():
    return []
"""


def product(*, compute: str = "float32", backward: bool = False) -> Work | None:
    problem = Problem(PRODUCT.replace("COMPUTE", compute).replace("BACKWARD", str(backward)), "product")
    (workload,) = problem.workloads("nvidia-h200")
    return work_of(problem, workload)


def test_bytes_and_operations_are_those_of_one_call() -> None:
    inputs, weight, outputs = 4 * 8 * 32, 4 * 32 * 16, 4 * 8 * 16
    assert product() == Work(inputs + weight + outputs, 2 * 8 * 32 * 16, 4)
    both = product(backward=True)
    assert both == Work(2 * (inputs + weight + outputs), 3 * 2 * 8 * 32 * 16, 4)
    assert product(compute="bfloat16") == Work(inputs + weight + outputs, 2 * 8 * 32 * 16, 2)


@pytest.mark.parametrize(
    ("work", "light_us", "bound"),
    [
        (Work(2_000_000, 1_000, 4), 2.0, "memory"),
        (Work(1_000, 5_000_000, 4), 5.0, "compute"),
        (Work(1_000, 5_000_000, 1), 0.25, "compute"),
        (Work(50_000, 10_000, 4), 0.05, "cache"),
    ],
)
def test_the_longer_of_both_is_the_speed_of_light(work: Work, light_us: float, bound: str) -> None:
    assert work.light_us(Peaks(1e12, 1e12, 10e12, 100_000)) == (pytest.approx(light_us), bound)


def test_the_page_has_every_workload() -> None:
    sections = dict(zip(*[iter(re.split(r"^## (\w+)\n", PAGE.read_text(), flags=re.MULTILINE)[1:])] * 2, strict=True))
    for name, outlined in bundled().items():
        workloads = [each.name for each in outlined.spec.workloads_for("nvidia-h200")]
        assert re.findall(r"^\| (\w+) \| (?!moves)", sections[name], flags=re.MULTILINE) == workloads, name


@pytest.mark.parametrize("name", ["conv1d", "softmax", "embedding_bag"])
def test_the_page_says_what_is_counted(name: str) -> None:
    problem = Problem(bundled()[name].source, name)
    for workload in problem.workloads("nvidia-h200"):
        row = _row(workload.name, work_of(problem, workload), PEAKS["nvidia-h200"])
        assert row in PAGE.read_text(), "run python -m benchmarks.record light --hardware nvidia-h200 > docs/suite.md"
