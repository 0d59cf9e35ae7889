"""Profiles of real candidates in real sandboxes: hot loops are found, refusals are told, nothing changes a verdict."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.finalist import means
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.stage import bench_of, staged
from worker.judge.physics.floor import PhysicsFloor
from worker.judge.report import EvaluationRequest, WorkloadTiming
from worker.judge.trial import Trial
from worker.profile import counters, on_cpu, samples
from worker.profile.ladder import Profiler
from worker.profile.roofline import Bound

pytestmark = pytest.mark.skipif(
    shutil.which("objdump") is None or platform.machine() != "x86_64", reason="needs objdump and an x86-64 processor"
)

PROBLEM = """
import torch

SPEC = {"workloads": [{"name": "only", "params": {"rows": 2048, "cols": 1024}}]}

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(x, -1)

def get_inputs(rows=2048, cols=1024):
    return [torch.rand(rows, cols)]

def get_init_inputs(rows=2048, cols=1024):
    return []
"""
CANDIDATE = '''
import torch
from kernelwright import load_cpp
SOURCE = r"""
#include <cstdint>
extern "C" void scan(const float* x, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0;
    for (int64_t c = 0; c < cols; c++) {
      sum += x[r * cols + c];
      y[r * cols + c] = (float)sum;
    }
  }
}
"""
lib = load_cpp(SOURCE)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scan(x, y, *x.shape)
        return y
'''
LOOP = 7
"""The line of `for (int64_t c` in SOURCE."""

Profile = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("home"), PROBLEM, "cpu") as ready:
        yield ready


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Compiling once more took 2.3 s beside other tests, and three times as long is over the limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_cpu, "_BUILD_LIMIT_S", 120.0)
        yield


@pytest.fixture(scope="module")
def profiler(parts: RefereeParts, tmp_path_factory: pytest.TempPathFactory) -> Profiler:
    return Profiler("cpu", tmp_path_factory.mktemp("builds"), PhysicsFloor("cpu"), lambda: parts.runner(False))


@pytest.fixture
def trial(parts: RefereeParts) -> Iterator[Trial]:
    """The candidate, loaded and right, with a row as timing would leave it."""
    problem = parts.exhibits.problem.outline
    with staged(parts, EvaluationRequest("c", CANDIDATE, problem.name, problem.source, "cpu", "cpp")) as ready:
        ready.evaluation.workloads = [
            WorkloadTiming(
                "only", 600.0, {"eager": 900.0}, "eager", 1.5, (1.4, 1.6), {}, sol_us=200.0, sol_fraction=0.3
            )
        ]
        yield ready


def test_the_hot_loop_is_found_in_the_source_without_any_counter(
    profiler: Profiler, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "BUDGET_S", 120.0)  # among other tests most looks are disturbed, and do not count
    profile = profiler.profile(trial)
    assert profile["rung"] in ("perf", "compiler report"), profile["refused"]
    hottest = profile["hot"][0]
    assert hottest["line"] == LOOP
    assert hottest["vector_bytes"] == 4
    assert hottest["share"] > 0.5
    assert profile["metrics"]["hot_share"] == hottest["share"]
    assert 0 < profile["metrics"]["device_share"] <= 1
    assert profile["bound"] in set(Bound)
    assert "Bottleneck: " in profile["text"]
    assert profile["rung"] in profile["text"]
    assert trial.evaluation.profile == {}, "the caller decides where it goes"


def test_without_counters_the_report_says_why(profiler: Profiler, trial: Trial) -> None:
    """On a machine with counters this is the rung of perf, and nothing is refused."""
    profile = profiler.profile(trial)
    if profile["rung"] == "perf":
        assert 0 < profile["metrics"]["instructions_per_cycle"] < 10
        assert "perf" not in profile["refused"]
        return
    assert profile["refused"]["perf"]
    assert profile["refused"]["perf"] in profile["text"]


@pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf")
def test_what_perf_counts_comes_back(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in software, the same way as in hardware: that works wherever perf does, also without a PMU."""
    monkeypatch.setattr(counters, "EVENTS", ("task-clock", "page-faults"))
    monkeypatch.setattr(counters, "NEEDED", ("task-clock",))
    try:
        counts = counters.count(trial.runner, bench_of(trial))
    except counters.NotCounted as forbidden:
        pytest.skip(f"this machine forbids perf altogether: {forbidden}")
    assert 0 < counts["task-clock"] < 1000, "milliseconds of one call"
    assert trial.runner.log() == "", "the runner has no part in it"


def test_perf_that_is_not_there_is_told_from_perf_that_may_not(
    parts: RefereeParts, trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "perf" else real(name))
    profile = Profiler("cpu", tmp_path, PhysicsFloor("cpu"), lambda: parts.runner(False)).profile(trial)
    assert (profile["rung"], profile["refused"]["perf"]) == ("compiler report", "perf is not installed")


def test_a_runner_that_is_gone_leaves_the_roofline(profiler: Profiler, trial: Trial) -> None:
    trial.runner.close()
    profile = profiler.profile(trial)
    assert profile["rung"] in ("roofline", "compiler report")
    assert "ended" in profile["refused"]["samples"]
    assert profile["bound"] in set(Bound)
    assert profile["roofline"]["only"]["sol_fraction"] == 0.3
    assert profile["metrics"]["memory_share"] > 0
    assert profile["text"]
