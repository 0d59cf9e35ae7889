"""A candidate trained with through the arena: fp32 sums pass, bf16 sums are refused with the reason."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.judge.dynamics.problems import LAYER, embedding
from worker.judge.dynamics import check as dynamics
from worker.judge.dynamics.rehearsal import Rehearsal
from worker.judge.dynamics.seats import NoSeat
from worker.judge.exhibits import Exhibits
from worker.judge.reference.problem import Problem
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.trial import SUBJECT, Trial
from worker.judge.verdict import Fault, Verdict

CANDIDATE = '''
import torch
from torch import nn
from kernelwright import load_cpp
SOURCE = r"""
#include <cstdint>
#include <cmath>
#include <cstring>
typedef SUM sum_t;
static float rounded(float v) {
  if (sizeof(sum_t) == 4) return v;
  uint32_t bits; memcpy(&bits, &v, 4);
  bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
  memcpy(&v, &bits, 4);
  return v;
}
extern "C" void gradient(const float* dy, const int64_t* ids, const float* table, const float* weight, float* dtable,
                         float* dweight, int64_t tokens, int64_t width) {
  for (int64_t t = 0; t < tokens; t++) {
    const float* x = table + ids[t] * width;
    float square = 0, dot = 0;
    for (int64_t i = 0; i < width; i++) square += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(square / width + 1e-5f);
    for (int64_t i = 0; i < width; i++) dot += dy[t * width + i] * weight[i] * x[i] * scale;
    for (int64_t i = 0; i < width; i++) {
      const float normed = x[i] * scale;
      float* sum = dtable + ids[t] * width + i;
      *sum = rounded(*sum + rounded(scale * (dy[t * width + i] * weight[i] - normed * dot / width)));
      dweight[i] += dy[t * width + i] * normed;
    }
  }
}
"""
lib = load_cpp(SOURCE)
class ModelNew(nn.Module):
    def forward(self, dy, ids, table, weight):
        dtable, dweight = torch.zeros_like(table), torch.zeros_like(weight)
        lib.gradient(dy, ids, table, weight, dtable, dweight, dy.shape[0], dy.shape[1])
        return dtable, dweight
'''


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(RefereeOptions(home=tmp_path_factory.mktemp("home"), hardware="cpu"), on_gpu=False)
    yield running
    running.close()


@pytest.fixture(scope="module")
def exhibits() -> Exhibits:
    return Exhibits(Problem(embedding(), "embedding"), "cpu", "cpu", 5)


@pytest.fixture(scope="module")
def rehearsal(exhibits: Exhibits) -> Rehearsal:
    return dynamics.rehearse(exhibits, seed=3, steps=5)


@contextmanager
def loaded(processes: Processes, exhibits: Exhibits, source: str) -> Iterator[Trial]:
    request = EvaluationRequest("c", source, "embedding", embedding(), "cpu", "cpp")
    with processes.runner() as runner:
        runner.ask({"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}, 60)
        yield Trial(runner, request, exhibits, "cpu", random.Random(1), Evaluation("c"))


def test_sums_in_fp32_pass_and_leave_their_curves(
    processes: Processes, exhibits: Exhibits, rehearsal: Rehearsal
) -> None:
    with loaded(processes, exhibits, CANDIDATE.replace("SUM", "float")) as trial:
        report = dynamics.check(trial, rehearsal)
    assert [row.passed for row in trial.evaluation.checks] == [True] * 6
    run = report.to_json()["runs"][0]
    assert len(run["steps"]) == len(run["candidate"]) == len(run["null_low"]) == 5


def test_sums_in_bf16_are_refused_and_the_reason_says_why(
    processes: Processes, exhibits: Exhibits, rehearsal: Rehearsal
) -> None:
    with loaded(processes, exhibits, CANDIDATE.replace("SUM", "short")) as trial, pytest.raises(Fault) as caught:
        dynamics.check(trial, rehearsal)
    assert caught.value.verdict == Verdict.INCORRECT
    assert "because sums are kept in bf16" in caught.value.reason
    rows = {row.name: row.passed for row in trial.evaluation.checks}
    assert not rows["training dynamics: SGD"]
    assert not rows["training dynamics: gradient bias"]


def test_a_problem_that_fits_no_transformer_is_told_so() -> None:
    forward_only = LAYER.replace('"backward": True', '"backward": False')
    with pytest.raises(NoSeat, match="no embedding gradient"):
        dynamics.rehearse(Exhibits(Problem(forward_only, "layer"), "cpu", "cpu", 5), seed=3)
    declared = LAYER.replace('"backward": True', '"backward": True, "seat": {"kind": "none"}')
    with pytest.raises(NoSeat, match="says that it fits none"):
        dynamics.rehearse(Exhibits(Problem(declared, "layer"), "cpu", "cpu", 5), seed=3)
