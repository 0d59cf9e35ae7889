"""Configurations measured in one runner, and fingerprints, by the real judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from search.tunables import with_values
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest

PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [
    {"name": "small", "params": {"rows": 32, "cols": 48}},
    {"name": "large", "params": {"rows": 256, "cols": 384}},
]}

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs(rows=32, cols=48):
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return []
"""
CANDIDATE = '''
import torch
from kernelwright import load_cpp

TUNABLES = {"REPEAT": [1, 400], "BUG": [0, 1, 2], "THREADS": [1, 2]}
REPEAT = 1
BUG = 0
THREADS = 1

SOURCE = r"""
#include <cstdint>
extern "C" void relu(const float* x, float* y, int64_t n) {
  if (BUG == 2) *(volatile int*)8 = 1;  // ends the process
  for (int k = 0; k < REPEAT; k++) {
    #pragma omp parallel for num_threads(THREADS)
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? BUG : x[i];
    asm volatile("" ::: "memory");
  }
}
"""
lib = load_cpp(SOURCE, flags=(f"-DREPEAT={REPEAT}", f"-DBUG={BUG}", f"-DTHREADS={THREADS}"))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.relu(x, y, x.numel())
        return y
'''
REQUEST = EvaluationRequest("c", CANDIDATE, "relu", PROBLEM, "cpu", "cpp", own_kernel_share=0.0)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with Judge(JudgeOptions(home=tmp_path_factory.mktemp("home"), hardware="cpu")) as running:
        yield running


def test_configurations_are_ranked_and_a_bad_one_costs_nothing_but_itself(judge: Judge) -> None:
    crash = judge.measure(REQUEST, with_values(CANDIDATE, {"BUG": 2}))
    assert (crash["verdict"], crash["ratios"]) == ("illegal_access", {})
    wrong = judge.measure(REQUEST, with_values(CANDIDATE, {"BUG": 1}))
    assert (wrong["verdict"], wrong["ratios"]) == ("incorrect", {})
    slow = judge.measure(REQUEST, with_values(CANDIDATE, {"REPEAT": 400}))
    assert slow["verdict"] == "ok", slow["reason"]
    assert set(slow["ratios"]) == set(slow["latency_us"]) == {"small", "large"}
    assert slow["ratios"]["large"] < 0.5, "400 times the work is slower on any machine"
    assert slow["signatures"] == {"small": [["float32", 32, 48]], "large": [["float32", 256, 384]]}
    assert 0 < slow["gpu_s"] <= slow["wall_s"]
    # The very source that is loaded already: what is mapped must not be written over.
    assert judge.measure(REQUEST, CANDIDATE)["verdict"] == "ok"
    judge.rest(PROBLEM)


def test_a_fingerprint_is_of_what_was_built(judge: Judge) -> None:
    mine = judge.fingerprint(REQUEST)
    assert mine is not None
    renamed = CANDIDATE.replace("int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? BUG : x[i]",
                                "int64_t j = 0; j < n; ++j) y[j] = x[j] < 0 ? BUG : x[j]")  # fmt: skip
    assert renamed != CANDIDATE
    assert judge.fingerprint(replace(REQUEST, candidate_source=renamed)) == mine
    for other in (with_values(CANDIDATE, {"REPEAT": 400}), CANDIDATE.replace("x.contiguous()", "x.contiguous() * 2")):
        assert judge.fingerprint(replace(REQUEST, candidate_source=other)) not in (mine, None)
    unbuilt = "import torch\n\n\nclass ModelNew(torch.nn.Relu if False else torch.nn.ReLU):\n    pass\n"
    assert judge.fingerprint(replace(REQUEST, candidate_source=unbuilt)) is None
    assert judge.fingerprint(replace(REQUEST, candidate_source="not python (")) is None
